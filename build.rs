//! Compiles kernels/*.cu under the feature `cuda`; does nothing without it.
//!
//! bindgen_cuda makes PTX of them; nvcc then puts machine code for the chosen compute capability and that PTX into
//! one fat binary a file. From PTX alone the driver compiles in the first call on each machine: 9 s for
//! warp.cu (H200, driver 580).
//!
//! bindgen_cuda runs nvcc. What it would panic on is checked first, and what it would miss (it compares
//! the times of .cu files only, so a changed header or compute capability kept the old PTX) is mended by
//! giving it an empty folder whenever cargo runs this script.

fn main() -> anyhow::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "cuda")]
    cuda::build()?;
    Ok(())
}

#[cfg(feature = "cuda")]
mod cuda {
    use anyhow::{anyhow, bail, Context, Result};
    use std::path::{Path, PathBuf};
    use std::process::{Command, Stdio};

    /// All that decides the PTX, besides the files in kernels/.
    const ENVIRONMENT: [&str; 9] = [
        "CUDA_COMPUTE_CAP",
        "CUDA_HOME",
        "CUDA_PATH",
        "CUDA_ROOT",
        "CUDA_TOOLKIT_ROOT_DIR",
        "NVCC_CCBIN",
        "NVCC_PREPEND_FLAGS",
        "NVCC_APPEND_FLAGS",
        "PATH",
    ];
    /// For the benchmark `ladder` alone, which compiles it at run time.
    const BENCH_ONLY: &str = "ladder.cu";
    /// The kernels take structs as `__grid_constant__` parameters.
    const OLDEST: usize = 70;

    pub fn build() -> Result<()> {
        println!("cargo:rerun-if-changed=kernels");
        for name in ENVIRONMENT {
            println!("cargo:rerun-if-env-changed={name}");
        }
        let supported = supported_caps()?;
        let cap = compute_cap()?;
        if cap < OLDEST {
            bail!("the feature `cuda` requires compute capability {OLDEST} or newer, got {cap}")
        }
        if !supported.contains(&cap) {
            bail!("this nvcc requires a compute capability out of {supported:?}, got {cap} (CUDA_COMPUTE_CAP, or nvidia-smi's answer)")
        }
        // bindgen_cuda reads the variable too, and asks nvidia-smi, which may not be there, if unset.
        std::env::set_var("CUDA_COMPUTE_CAP", cap.to_string());

        let out_dir = PathBuf::from(std::env::var("OUT_DIR")?);
        let files = kernel_files()?;
        remove_ptx(&out_dir)?;
        let mut builder = bindgen_cuda::Builder::default()
            .kernel_paths(with_extension(&files, "cu"))
            .include_paths(with_extension(&files, "cuh"));
        builder.cuda_root(cuda_root()?);
        for flag in std::fs::read_to_string("kernels/nvcc-flags.txt")?.lines() {
            // bindgen_cuda keeps arguments as &'static str; this process ends soon.
            builder = builder.arg(Box::leak(flag.trim().to_owned().into_boxed_str()));
        }
        let bindings = builder.build_ptx().map_err(|e| anyhow!("{e:?}"))?;
        bindings
            .write(out_dir.join("ptx.rs"))
            .map_err(|e| anyhow!("{e:?}"))?;
        let kernels = with_extension(&files, "cu");
        let names = kernels.iter().filter_map(|path| path.file_stem()?.to_str());
        write_fat_binaries(&out_dir, &names.collect::<Vec<_>>(), cap)
    }

    /// What makes fat binaries small: 3.6 MB in all for sm_90, 13.9 without; the PTX among them, 20 MB of text, is 2.1 MB.
    /// Drivers from before CUDA 12.4 cannot read them so. nvcc from 13.0 on is for no driver as old as that; an older one,
    /// that may be, is left at its default.
    fn compression() -> Result<Option<&'static str>> {
        let output = Command::new("nvcc").arg("--version").output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let release = text.split("release ").nth(1);
        let major = release.and_then(|release| release.split('.').next()?.parse::<u32>().ok());
        Ok((major >= Some(13)).then_some("--compress-mode=size"))
    }

    /// OUT_DIR/NAME.fatbin from OUT_DIR/NAME.ptx, and kernels.rs with a constant of bytes for each
    /// and the compute capability of all.
    fn write_fat_binaries(out_dir: &Path, names: &[&str], cap: usize) -> Result<()> {
        let compression = compression()?;
        let compile = |name: &str| -> Result<std::process::Child> {
            Command::new("nvcc")
                .arg("--fatbin")
                .args(compression)
                .arg(format!("-arch=sm_{cap}"))
                .arg("-o")
                .arg(out_dir.join(name).with_extension("fatbin"))
                .arg(out_dir.join(name).with_extension("ptx"))
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .context("starting nvcc")
        };
        let running: Vec<_> = names.iter().map(|name| (name, compile(name))).collect();
        let mut source = format!("pub const COMPUTE_CAP: usize = {cap};\n");
        for (name, child) in running {
            let output = child?.wait_with_output()?;
            if !output.status.success() {
                bail!(
                    "nvcc --fatbin -arch=sm_{cap} {name}.ptx: {}",
                    String::from_utf8_lossy(&output.stderr)
                )
            }
            let constant = name.to_uppercase();
            source += &format!(
                "pub const {constant}: &[u8] = include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{name}.fatbin\"));\n"
            );
        }
        Ok(std::fs::write(out_dir.join("kernels.rs"), source)?)
    }

    fn kernel_files() -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir("kernels").context("reading kernels/")? {
            files.push(entry?.path());
        }
        files.retain(|path| !path.ends_with(BENCH_ONLY));
        files.sort();
        Ok(files)
    }

    fn with_extension(files: &[PathBuf], extension: &str) -> Vec<PathBuf> {
        let matches = |p: &&PathBuf| p.extension().is_some_and(|e| e == extension);
        files.iter().filter(matches).cloned().collect()
    }

    fn remove_ptx(out_dir: &Path) -> Result<()> {
        for entry in std::fs::read_dir(out_dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "ptx") {
                std::fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    /// Compute capabilities that the nvcc on PATH compiles for, as 75, 80, ...
    fn supported_caps() -> Result<Vec<usize>> {
        let output = Command::new("nvcc")
            .arg("--list-gpu-code")
            .output()
            .context(
                "the feature `cuda` requires nvcc on PATH, got none that starts \
             (install the CUDA toolkit, or: eval \"$(scripts/cuda-toolkit.sh)\")",
            )?;
        let text = String::from_utf8_lossy(&output.stdout);
        let caps: Vec<usize> = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("sm_")?.parse().ok())
            .collect();
        if caps.is_empty() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            bail!("`nvcc --list-gpu-code` must list sm_NN codes, got {text:?} {stderr:?}")
        }
        Ok(caps)
    }

    /// CUDA_COMPUTE_CAP, or what nvidia-smi says of the first GPU, as 90.
    fn compute_cap() -> Result<usize> {
        if let Ok(cap) = std::env::var("CUDA_COMPUTE_CAP") {
            return cap.trim().parse().map_err(|_| {
                anyhow!("CUDA_COMPUTE_CAP must be a number such as 75, 80, 86 or 90, got {cap:?}")
            });
        }
        let hint = "set CUDA_COMPUTE_CAP (90 for H100 and H200, 80 for A100, 75 for T4) to build \
                    where no GPU is visible";
        let output = Command::new("nvidia-smi")
            .args(["--query-gpu=compute_cap", "--format=csv,noheader"])
            .output()
            .with_context(|| format!("nvidia-smi does not start; {hint}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let first = text.lines().next().unwrap_or("").trim();
        first.replace('.', "").parse().map_err(|_| {
            anyhow!("nvidia-smi must name a compute capability, got {first:?}; {hint}")
        })
    }

    /// The toolkit's folder: the variables that bindgen_cuda and cudarc read, or nvcc's own.
    fn cuda_root() -> Result<PathBuf> {
        let named = [
            "CUDA_HOME",
            "CUDA_PATH",
            "CUDA_ROOT",
            "CUDA_TOOLKIT_ROOT_DIR",
        ]
        .into_iter()
        .filter_map(std::env::var_os)
        .map(PathBuf::from);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let beside_nvcc = std::env::split_paths(&path)
            .filter(|dir| dir.join("nvcc").exists() || dir.join("nvcc.exe").exists())
            .filter_map(|dir| Some(dir.canonicalize().ok()?.parent()?.to_path_buf()));
        let usual = ["/usr/local/cuda", "/usr"].map(PathBuf::from);
        (named.chain(beside_nvcc).chain(usual))
            .find(|root| root.join("include/cuda.h").is_file())
            .context("the CUDA toolkit must have include/cuda.h, got none (set CUDA_HOME to it)")
    }
}
