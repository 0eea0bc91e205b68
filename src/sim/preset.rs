//! Constants of the closed form for GPUs and models, each with where it comes from.
//!
//! Measured: `a40-eager` (0.6B, vLLM without CUDA graphs, 64 cache-cost cells: 17 us/token, 2.7 ns/pair,
//! 14.5 ms a step). Scaled from Vidur's A40 kernels and the L40S: `a40`, `a40-8b`. Fitted by least squares of
//! relative errors over the eight kernel times of aiconfigurator (1x1024, 1x4096, 1x8192, 2048 on 16k; b1@1k,
//! b32@4k, b32@8k, b64@8k) with the form of `cost`: `l40s`, `a100`, `h200`, `l40s-8b`, `a100-8b`; largest
//! residuals 11, 10, 10, 8 and 5 %. Derived: `h100` is `h200` (the same die) with its memory rate times
//! 3.35/4.8. Scaled and never measured: `h200-8b`. `bench/python/sim_presets.py` repeats the fits.
//!
//! KV capacity: on the A40 vLLM's own 308,448 tokens. Elsewhere 0.9 of the memory less the weights less the
//! 6.9 GB that the A40 run leaves for activations. Host time a step is 5 ms everywhere but in `a40-eager`
//! (3 ms in `h200-8b`). Watts: on the A40 75 idle, 225 more at full compute; elsewhere the same shares of the
//! board's limit, an assumption.

use serde::Deserialize;

/// A GPU with a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub(super) enum Preset {
    #[default]
    #[serde(rename = "a40")]
    A40,
    #[serde(rename = "a40-eager")]
    A40Eager,
    #[serde(rename = "a40-8b")]
    A40Large,
    #[serde(rename = "l40s")]
    L40s,
    #[serde(rename = "l40s-8b")]
    L40sLarge,
    #[serde(rename = "a100")]
    A100,
    #[serde(rename = "a100-8b")]
    A100Large,
    #[serde(rename = "h100")]
    H100,
    #[serde(rename = "h200")]
    H200,
    #[serde(rename = "h200-8b")]
    H200Large,
}

/// What a preset stands for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Constants {
    /// Seconds to compute one token.
    pub(super) token_s: f64,
    /// Seconds for one pair of query and key.
    pub(super) pair_s: f64,
    /// Memory read, bytes per second.
    pub(super) bytes_per_s: f64,
    pub(super) weight_bytes: f64,
    pub(super) kv_bytes_per_token: f64,
    /// Kernel time of a step that no other term explains, seconds.
    pub(super) kernel_s: f64,
    /// Host time of a step, seconds.
    pub(super) overhead_s: f64,
    pub(super) kv_tokens: u64,
    /// The board's limit.
    pub(super) limit_w: f64,
}

const SMALL_KV: f64 = 114_688.0;
const LARGE_KV: f64 = 147_456.0;
const SMALL_WEIGHTS: f64 = 1.19e9;
const LARGE_WEIGHTS: f64 = 16.4e9;

const fn small(token_us: f64, pair_ns: f64, gb_per_s: f64, kernel_ms: f64) -> Constants {
    Constants {
        token_s: token_us * 1e-6,
        pair_s: pair_ns * 1e-9,
        bytes_per_s: gb_per_s * 1e9,
        weight_bytes: SMALL_WEIGHTS,
        kv_bytes_per_token: SMALL_KV,
        kernel_s: kernel_ms * 1e-3,
        overhead_s: 5e-3,
        kv_tokens: 308_448,
        limit_w: 300.0,
    }
}

const fn large(token_us: f64, pair_ns: f64, gb_per_s: f64, kernel_ms: f64) -> Constants {
    Constants {
        weight_bytes: LARGE_WEIGHTS,
        kv_bytes_per_token: LARGE_KV,
        ..small(token_us, pair_ns, gb_per_s, kernel_ms)
    }
}

impl Preset {
    pub(super) const fn constants(self) -> Constants {
        match self {
            Self::A40 => small(11.0, 3.5, 500.0, 0.0),
            Self::A40Eager => Constants {
                overhead_s: 14.5e-3,
                ..small(17.0, 2.7, 500.0, 0.0)
            },
            // 16.4 GB in 33 ms.
            Self::A40Large => Constants {
                kv_tokens: 137_000,
                ..large(150.0, 9.0, 497.0, 0.0)
            },
            Self::L40s => Constants {
                limit_w: 350.0,
                ..small(6.92, 1.02, 680.9, 0.55)
            },
            Self::L40sLarge => Constants {
                kv_tokens: 137_000,
                limit_w: 350.0,
                ..large(71.7, 2.9, 708.5, 0.0547)
            },
            Self::A100 => Constants {
                kv_tokens: 603_000,
                limit_w: 400.0,
                ..small(6.55, 1.16, 1399.0, 1.12)
            },
            Self::A100Large => Constants {
                kv_tokens: 366_000,
                limit_w: 400.0,
                ..large(59.0, 3.13, 1400.0, 0.518)
            },
            Self::H100 => Constants {
                kv_tokens: 601_000,
                limit_w: 700.0,
                ..small(2.08, 0.317, 4537.0 * 3.35 / 4.8, 1.38)
            },
            Self::H200 => Constants {
                kv_tokens: 1_112_000,
                limit_w: 700.0,
                ..small(2.08, 0.317, 4537.0, 1.38)
            },
            Self::H200Large => Constants {
                kv_tokens: 700_000,
                limit_w: 700.0,
                overhead_s: 3e-3,
                ..large(27.0, 1.5, 3800.0, 0.0)
            },
        }
    }
}
