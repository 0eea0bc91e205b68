//! KV handoffs that can be checked: parameters in the shape of vLLM's NIXL connector, sealed by whoever issued them.
//!
//! Any fast mock can tell whether a prefill issued them, how old they are, and whether it pulled them before.

use std::collections::HashSet;

use memchr::memmem;

/// What the router of this worker is to be kept from: pulling what was not issued, twice, or late.
pub(crate) struct Handoff {
    engine: String,
    issued: u64,
    pulled: HashSet<(u64, u64)>,
    lease_ns: u64,
}

/// A genuine pull.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pull {
    /// A real engine would have answered with somebody else's KV.
    pub(crate) is_stale: bool,
}

impl Handoff {
    pub(crate) fn new(engine: String, lease_ms: u64) -> Self {
        Self {
            engine,
            issued: 0,
            pulled: HashSet::new(),
            lease_ns: lease_ms.saturating_mul(1_000_000),
        }
    }

    /// The `kv_transfer_params` of a prefill's answer.
    pub(crate) fn issue(&mut self, now_ns: u64, port: u16, prompt_tokens: usize) -> String {
        self.issued += 1;
        let (engine, serial) = (&self.engine, self.issued);
        let seal = seal(engine, serial, now_ns);
        format!(
            r#"{{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3]],"remote_engine_id":"{engine}","remote_request_id":"{serial}-{now_ns}-{seal:016x}","remote_host":"127.0.0.1","remote_port":{port},"remote_num_tokens":{prompt_tokens},"tp_size":1}}"#
        )
    }

    /// Pulls what the body's parameters name; what is wrong with them otherwise.
    pub(crate) fn redeem(&mut self, body: &[u8], now_ns: u64) -> Result<Pull, &'static str> {
        let malformed = "malformed kv_transfer_params";
        let engine = string(body, br#""remote_engine_id":"#).ok_or(malformed)?;
        let ticket = string(body, br#""remote_request_id":"#).ok_or(malformed)?;
        let mut parts = ticket.split('-');
        let mut number = |radix| u64::from_str_radix(parts.next()?, radix).ok();
        let (Some(serial), Some(issued), Some(sealed)) = (number(10), number(10), number(16))
        else {
            return Err(malformed);
        };
        if sealed != seal(engine, serial, issued) {
            return Err("kv_transfer_params that no prefill issued");
        }
        if !self.pulled.insert((serial, sealed)) {
            return Err("kv_transfer_params already pulled");
        }
        let is_stale = now_ns.saturating_sub(issued) > self.lease_ns;
        Ok(Pull { is_stale })
    }
}

/// The string after `key`, which holds no escapes.
fn string<'a>(body: &'a [u8], key: &[u8]) -> Option<&'a str> {
    let at = memmem::find(body, key)? + key.len();
    let rest = body[at..].trim_ascii_start().strip_prefix(b"\"")?;
    str::from_utf8(&rest[..memchr::memchr(b'"', rest)?]).ok()
}

/// FNV-1a: it keeps out mistakes, not enemies.
fn seal(engine: &str, serial: u64, issued_ns: u64) -> u64 {
    let bytes = engine
        .bytes()
        .chain(serial.to_le_bytes())
        .chain(issued_ns.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_issued_is_pulled_once_and_its_age_is_told() {
        let (mut prefiller, mut decoder) =
            (Handoff::new("e1".into(), 30), Handoff::new("e2".into(), 30));
        let params = prefiller.issue(1_000, 7, 42);
        let body = format!(r#"{{"kv_transfer_params": {params}}}"#);
        let pulled = decoder.redeem(body.as_bytes(), 30_001_000);
        assert_eq!(pulled, Ok(Pull { is_stale: false }), "to the nanosecond");
        assert!(decoder.redeem(body.as_bytes(), 2_000).is_err(), "twice");
        let late = prefiller.issue(1_000, 7, 42);
        assert_eq!(
            decoder.redeem(late.as_bytes(), 30_001_001),
            Ok(Pull { is_stale: true })
        );
    }

    #[test]
    fn what_nobody_issued_is_refused() {
        let mut decoder = Handoff::new("e2".into(), 30);
        let params = Handoff::new("e1".into(), 30).issue(1_000, 7, 42);
        for changed in [
            params.replace("\"e1\"", "\"e3\""),
            params.replace("1-1000-", "1-1001-"),
            params.replace("1-1000-", "x"),
            params.replace("remote_request_id", "request"),
            String::new(),
        ] {
            assert!(
                decoder.redeem(changed.as_bytes(), 2_000).is_err(),
                "{changed}"
            );
        }
    }
}
