//! `fastmock serve` is a canned OpenAI worker, `fastmock load` a load generator. One thread each, no work per byte of a body.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::disallowed_macros,
    reason = "those rules keep the router's core free of clocks, sockets and output; this program is nothing else"
)]

mod answer;
mod conn;
mod handoff;
mod http;
mod leg;
mod load;
mod options;
mod spec;
mod stats;
mod worker;

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use options::Options;

/// Nanoseconds of the machine's clock, which worker and load generator share.
pub(crate) fn now_ns() -> u64 {
    let span = SystemTime::now().duration_since(UNIX_EPOCH);
    span.map_or(0, |span| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let command = words.next().unwrap_or_default();
    let run = match command.as_str() {
        "serve" => worker::run,
        "load" => load::run,
        _ => {
            eprintln!(
                "usage: fastmock serve|load --OPTION VALUE...; see src/worker.rs and src/load.rs"
            );
            return ExitCode::from(2);
        }
    };
    match Options::parse(words).and_then(|options| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fastmock {command}: {error}");
            ExitCode::FAILURE
        }
    }
}
