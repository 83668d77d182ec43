//! The table of layouts: each row makes a view of a fresh base tensor whose last dimension has
//! `n` elements (one has a single column).

use candle_core::{Result, Tensor};

type MakeView = Box<dyn Fn(&Tensor) -> Result<Tensor>>;

/// How to make one strided tensor.
pub struct View {
    pub name: String,
    /// Shape of the contiguous tensor to make the view of.
    pub base: Vec<usize>,
    pub make: MakeView,
    /// Some elements are seen more than once, so that in place makes no sense.
    pub overlaps: bool,
}

/// Adds one row to the table.
fn view(
    table: &mut Vec<View>,
    name: impl Into<String>,
    base: &[usize],
    make: impl Fn(&Tensor) -> Result<Tensor> + 'static,
) {
    table.push(View {
        name: name.into(),
        base: base.to_vec(),
        make: Box::new(make),
        overlaps: false,
    });
}

/// All layouts with rows of `n` columns; under `COS_SHARD=i/k`, each k-th of them from the i-th on.
pub fn table(n: usize) -> Vec<View> {
    share(whole_table(n))
}

/// The sanitizers keep what they know of every launch of a process: the whole table is 11 GiB of it.
fn share(table: Vec<View>) -> Vec<View> {
    let Ok(shard) = std::env::var("COS_SHARD") else {
        return table;
    };
    let number = |n: &str| n.parse::<usize>().expect("COS_SHARD=i/k, two numbers");
    let (first, step) = shard.split_once('/').expect("COS_SHARD=i/k");
    let (first, step) = (number(first), number(step));
    assert!(first < step, "COS_SHARD=i/k, i below k");
    table.into_iter().skip(first).step_by(step).collect()
}

fn whole_table(n: usize) -> Vec<View> {
    let mut table = vec![];
    offsets(&mut table, n);
    steps(&mut table, n);
    permutations(&mut table, n);
    if n <= 1100 {
        high_ranks(&mut table, n);
    }
    single_dims(&mut table, n);
    broadcasts(&mut table, n);
    table
}

/// Starts that are not aligned to any vector, whole and with gaps between the rows.
fn offsets(t: &mut Vec<View>, n: usize) {
    view(t, "contiguous", &[6, n], |x| Ok(x.clone()));
    for k in [1, 2, 3, 4, 5, 8] {
        view(t, format!("columns from {k}"), &[6, n + 9], move |x| {
            x.narrow(1, k, n)
        });
        view(t, format!("contiguous from {k}"), &[5 * n + k], move |x| {
            x.narrow(0, k, 5 * n)?.reshape((5, n))
        });
    }
    view(t, "aligned rows, aligned gap", &[5, n + 64], move |x| {
        x.narrow(1, 0, n)
    });
    view(t, "rows 2 to 6", &[9, n], |x| x.narrow(0, 2, 5));
    view(t, "a middle block", &[3, 5, n + 3], move |x| {
        x.narrow(1, 1, 3)?.narrow(2, 2, n)
    });
}

fn steps(t: &mut Vec<View>, n: usize) {
    view(t, "every second column", &[4, n, 2], |x| {
        x.narrow(2, 1, 1)?.squeeze(2)
    });
    view(t, "every third column", &[4, n, 3], |x| {
        x.narrow(2, 2, 1)?.squeeze(2)
    });
    view(t, "every second row", &[4, 2, n], |x| {
        x.narrow(1, 1, 1)?.squeeze(1)
    });
    view(t, "every second row and column", &[3, 2, n, 2], |x| {
        x.narrow(1, 1, 1)?.squeeze(1)?.narrow(2, 0, 1)?.squeeze(2)
    });
}

fn permutations(t: &mut Vec<View>, n: usize) {
    view(t, "transposed", &[n, 7], |x| x.t());
    view(t, "transposed, wide", &[n, 67], |x| x.t());
    view(t, "transposed columns from 1", &[n, 7], |x| {
        x.narrow(1, 1, 5)?.t()
    });
    view(t, "transposed rows from 3", &[n + 5, 4], move |x| {
        x.narrow(0, 3, n)?.t()
    });
    view(t, "heads", &[2, 3, 4, n], |x| x.transpose(1, 2));
    view(t, "batch inside", &[4, n, 3], |x| x.transpose(1, 2));
    view(t, "flipped rank 5", &[n, 2, 1, 3, 2], |x| {
        x.permute((4, 3, 2, 1, 0))
    });
    view(t, "rotated rank 3", &[n, 3, 4], |x| x.permute((1, 2, 0)));
}

fn high_ranks(t: &mut Vec<View>, n: usize) {
    view(t, "rank 6", &[2, 3, 2, 2, 1, n], |x| {
        x.permute(vec![2, 0, 3, 1, 4, 5])
    });
    view(t, "rank 7", &[2, n, 2, 1, 2, 3, 2], |x| {
        x.permute(vec![5, 0, 6, 2, 3, 4, 1])
    });
    view(t, "rank 8", &[2, 2, 2, 3, n, 2, 1, 2], |x| {
        x.permute(vec![7, 2, 0, 5, 6, 3, 1, 4])?.narrow(5, 1, 2)
    });
}

/// Size-1 dimensions whose stride is that of something else.
fn single_dims(t: &mut Vec<View>, n: usize) {
    view(t, "one of five rows", &[4, 5, n], |x| x.narrow(1, 2, 1));
    view(t, "leading one", &[5, n], |x| x.narrow(0, 3, 1));
    view(t, "trailing one", &[n, 6], |x| x.narrow(1, 3, 1));
    view(t, "one between", &[3, n, 2], |x| {
        x.narrow(2, 1, 1)?.transpose(1, 2)
    });
}

fn broadcasts(t: &mut Vec<View>, n: usize) {
    let before = t.len();
    view(t, "one row broadcast", &[1, n], move |x| {
        x.broadcast_as((5, n))
    });
    view(t, "one column broadcast", &[5, 1], move |x| {
        x.broadcast_as((5, n))
    });
    view(t, "one number broadcast", &[1, 1], move |x| {
        x.broadcast_as((3, n))
    });
    view(t, "broadcast between", &[3, 1, n], move |x| {
        x.broadcast_as((3, 4, n))
    });
    view(t, "broadcast outside", &[2, n], move |x| {
        x.broadcast_as((3, 2, n))
    });
    view(t, "broadcast column from 1", &[4, 3], move |x| {
        x.narrow(1, 1, 1)?.broadcast_as((4, n))
    });
    for view in &mut t[before..] {
        // At one column, broadcasting a column changes nothing.
        view.overlaps = n > 1 || !view.name.contains("column");
    }
}
