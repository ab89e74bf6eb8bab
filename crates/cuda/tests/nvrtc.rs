//! Every kernel, as NVIDIA's compiler takes it, for the architectures that it is meant for. Needs NVRTC and no GPU:
//! `make test-nvrtc` gets it and runs this. Without the library it fails.

use onehop_cuda::Nvrtc;
use onehop_cuda::kernels::q6;

/// What the kernels are to run on: H100 and H200, A100.
const ARCHITECTURES: [(i32, i32); 2] = [(9, 0), (8, 0)];

#[test]
#[ignore = "needs NVRTC: make test-nvrtc"]
fn every_kernel_compiles() {
    let nvrtc = match Nvrtc::load() {
        Ok(nvrtc) => nvrtc,
        Err(e) => panic!("{e}; {}", e.cure().unwrap_or_default()),
    };
    let mut compiled = 0;
    for compute in ARCHITECTURES {
        let mut compile = |macros: &[(&str, String)]| match nvrtc.compile("q6.cu", q6::TEXT, compute, macros) {
            Ok(image) => {
                assert!(image.starts_with(b"\x7fELF"), "an image for {compute:?}");
                compiled += 1;
            }
            Err(e) => panic!("{compute:?}, {macros:?}: {e}"),
        };
        compile(&q6::rows_macros());
        for bits in 0..=32 {
            compile(&q6::segment_macros([bits, (bits + 8) % 33, (bits + 16) % 33, (bits + 25) % 33]));
        }
    }
    let (major, minor) = nvrtc.version();
    // A line of its own, whatever the harness has begun.
    println!("\nnvrtc: {compiled} passed, 0 failed (NVRTC {major}.{minor}, for {ARCHITECTURES:?})");
}
