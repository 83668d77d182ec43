//! `--hub` against a server on this machine that answers for the fixture as the hub does.
use crate::cli::{gpt, stdout, with_fixture};
use crate::fixture::folder;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Output;

/// Serves `tiny/gpt2` until the test ends; gives its address.
fn serve() -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // A client that hangs up is its own affair.
            let _ = answer(stream.unwrap());
        }
    });
    address
}

/// The hub answers a ranged GET of `/<id>/resolve/<revision>/<file>` with the commit and an etag;
/// an id of old is redirected, relative to the server, to the new one.
fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().unwrap_or(Ok(String::new()))?;
    let mut range = None;
    for line in lines {
        let line = line?.to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        range = range.or(line.strip_prefix("range: bytes=").map(str::to_string));
    }
    let path = request.split(' ').nth(1).unwrap_or_default();
    if let Some(file) = path.strip_prefix("/old-gpt2/") {
        let head = "HTTP/1.1 307 Temporary Redirect\r\nConnection: close\r\nContent-Length: 0";
        return write!(stream, "{head}\r\nLocation: /tiny/gpt2/{file}\r\n\r\n");
    }
    let name = path.strip_prefix("/tiny/gpt2/resolve/main/");
    let bytes = match name.map(|name| std::fs::read(folder().join(name))) {
        Some(Ok(bytes)) => bytes,
        _ => {
            let head = "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0";
            return write!(stream, "{head}\r\n\r\n");
        }
    };
    let range = range.unwrap_or_default();
    let (from, to) = range.split_once('-').unwrap_or(("0", ""));
    let from: usize = from.parse().unwrap_or(0);
    let to = to.parse().unwrap_or(bytes.len() - 1).min(bytes.len() - 1);
    write!(
        stream,
        "HTTP/1.1 206 Partial Content\r\nConnection: close\r\nX-Repo-Commit: {}\r\n\
         ETag: \"{}\"\r\nContent-Range: bytes {from}-{to}/{}\r\nContent-Length: {}\r\n\r\n",
        "c0ffee".repeat(6),
        name.unwrap_or_default().replace('.', "-"),
        bytes.len(),
        to + 1 - from,
    )?;
    stream.write_all(&bytes[from..=to])
}

/// An empty cache of the test's own.
fn cache(name: &str) -> PathBuf {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hub-{name}"));
    let _ = std::fs::remove_dir_all(&cache);
    cache
}

fn with_hub(endpoint: &str, cache: &Path, id: &str) -> Output {
    gpt()
        .env("HF_ENDPOINT", endpoint)
        .env("HF_HOME", cache)
        .args(["--hub", id, "--temperature", "0", "--max-tokens", "30"])
        .output()
        .unwrap()
}

#[test]
fn a_model_comes_from_the_hub() {
    let wanted = stdout(&with_fixture(&["--temperature", "0", "--max-tokens", "30"]));
    let endpoint = serve();
    for (i, id) in ["tiny/gpt2", "old-gpt2"].into_iter().enumerate() {
        let cache = cache(&format!("good-{i}"));
        assert_eq!(stdout(&with_hub(&endpoint, &cache, id)), wanted);
        // The second time from the cache: nothing answers at this address.
        assert_eq!(stdout(&with_hub("http://127.0.0.1:9", &cache, id)), wanted);
    }
}

#[test]
fn a_bad_id_costs_one_line() {
    let endpoint = serve();
    for (endpoint, id, wanted) in [
        (
            endpoint.as_str(),
            "no/such",
            "cannot get config.json of no/such from the hub: ",
        ),
        (
            "http://127.0.0.1:9",
            "tiny/gpt2",
            "cannot get config.json of tiny/gpt2 from the hub: ",
        ),
        (
            endpoint.as_str(),
            "../tiny/gpt2",
            "--hub wants an id such as owner/name",
        ),
        (
            endpoint.as_str(),
            "",
            "--hub wants an id such as owner/name",
        ),
        (
            endpoint.as_str(),
            "a b",
            "--hub wants an id such as owner/name",
        ),
    ] {
        let output = with_hub(endpoint, &cache("bad"), id);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(
            error.starts_with("error: ") && error.contains(wanted),
            "{error}"
        );
    }
}
