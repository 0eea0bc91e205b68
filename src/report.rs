//! A worker's own account of itself, read from the Prometheus text that it exposes.
//!
//! Promises: pure, never panics, whatever the bytes; what cannot be read is left out.
//! Leaves to others: fetching the text (`watch`), acting on it (`fleet`).

use crate::units::{BlockSize, Blocks, Tokens};

/// What a worker said; `None` where it did not.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WorkerReport {
    /// KV blocks that it can give to requests.
    pub kv_blocks: Option<Blocks>,
    /// Tokens in a block.
    pub block_size: Option<BlockSize>,
    /// Share of the blocks used by running requests, 0 to 1. Idle prefix blocks count as free.
    pub kv_usage: Option<f64>,
    /// Requests that run.
    pub running: Option<u32>,
    /// Requests that wait.
    pub waiting: Option<u32>,
    /// Longest prompt plus answer.
    pub max_model_len: Option<Tokens>,
    /// Prompt tokens looked up in the prefix cache since the start.
    pub prefix_queries: Option<u64>,
    /// Of these, found.
    pub prefix_hits: Option<u64>,
}

impl WorkerReport {
    /// Reads the metrics of vLLM, which `workers/tiny` and `workers/mock` share. Unknown lines are
    /// skipped; series of several engines in one process are added up (usage is averaged).
    ///
    /// ```
    /// use conserve::report::WorkerReport;
    /// let text = b"vllm:num_requests_running{engine=\"0\"} 3.0\nvllm:kv_cache_usage_perc 0.25\n";
    /// let report = WorkerReport::parse(text);
    /// assert_eq!((report.running, report.kv_usage), (Some(3), Some(0.25)));
    /// ```
    #[must_use]
    pub fn parse(text: &[u8]) -> Self {
        let mut report = Self::default();
        let mut usage = (0.0, 0.0);
        for line in text.split(|byte| *byte == b'\n') {
            let Some(sample) = Sample::parse(line) else {
                continue;
            };
            match sample.name {
                "vllm:cache_config_info" => report.read_cache_config(sample.labels),
                "vllm:num_requests_running" => add_u32(&mut report.running, sample.value),
                "vllm:num_requests_waiting" => add_u32(&mut report.waiting, sample.value),
                "vllm:kv_cache_usage_perc" | "vllm:gpu_cache_usage_perc"
                    if (0.0..=1.0).contains(&sample.value) =>
                {
                    usage = (usage.0 + sample.value, usage.1 + 1.0);
                }
                "vllm:prefix_cache_queries_total" | "vllm:prefix_cache_queries" => {
                    add_u64(&mut report.prefix_queries, sample.value);
                }
                "vllm:prefix_cache_hits_total" | "vllm:prefix_cache_hits" => {
                    add_u64(&mut report.prefix_hits, sample.value);
                }
                "conserve:max_model_len" => {
                    report.max_model_len = whole(sample.value).map(Tokens);
                }
                _ => {}
            }
        }
        if usage.1 > 0.0 {
            report.kv_usage = Some(usage.0 / usage.1);
        }
        report
    }

    fn read_cache_config(&mut self, labels: &str) {
        let number = |name| label(labels, name).and_then(|text| text.parse::<u32>().ok());
        // One of each engine's blocks is its null block, which holds no token.
        let usable = number("num_gpu_blocks").and_then(|blocks| blocks.checked_sub(1));
        if let Some(blocks) = usable.filter(|blocks| *blocks > 0) {
            let more = Blocks::new(u64::from(blocks));
            self.kv_blocks = Some(self.kv_blocks.unwrap_or_default().plus(more));
        }
        if let Some(size) = number("block_size").and_then(BlockSize::new) {
            self.block_size = Some(size);
        }
    }

    /// Whether it says how much the worker does now, which grows old; the rest holds for the life of its process.
    #[must_use]
    pub const fn tells_load(&self) -> bool {
        self.kv_usage.is_some() || self.running.is_some() || self.waiting.is_some()
    }

    /// The same without what grows old.
    #[must_use]
    pub fn without_load(self) -> Self {
        Self {
            kv_usage: None,
            running: None,
            waiting: None,
            ..self
        }
    }

    /// What this report does not say, taken from an `older` one.
    #[must_use]
    pub fn or(self, older: &Self) -> Self {
        Self {
            kv_blocks: self.kv_blocks.or(older.kv_blocks),
            block_size: self.block_size.or(older.block_size),
            kv_usage: self.kv_usage.or(older.kv_usage),
            running: self.running.or(older.running),
            waiting: self.waiting.or(older.waiting),
            max_model_len: self.max_model_len.or(older.max_model_len),
            prefix_queries: self.prefix_queries.or(older.prefix_queries),
            prefix_hits: self.prefix_hits.or(older.prefix_hits),
        }
    }
}

/// One line: `name{labels} value [timestamp]`.
struct Sample<'a> {
    name: &'a str,
    labels: &'a str,
    value: f64,
}

impl<'a> Sample<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let line = std::str::from_utf8(line).ok()?.trim();
        if line.is_empty() || line.starts_with('#') {
            return None;
        }
        let name_ends = line.find(|c: char| c == '{' || c.is_whitespace())?;
        let (name, rest) = line.split_at(name_ends);
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(inner) => inner.split_at_checked(labels_end(inner)?)?,
            None => ("", rest),
        };
        let value = rest
            .trim_start_matches('}')
            .split_whitespace()
            .next()?
            .parse()
            .ok()?;
        Some(Self {
            name,
            labels,
            value,
        })
    }
}

/// The position of the brace that closes the labels: one outside quotes.
fn labels_end(inner: &str) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    for (at, byte) in inner.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'}' if !quoted => return Some(at),
            _ => {}
        }
    }
    None
}

/// The value of the label `name`, as written between its quotes.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = labels;
    loop {
        let (key, after) = rest.split_once("=\"")?;
        let mut escaped = false;
        let end = after.bytes().position(|byte| {
            let ends = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        })?;
        if key.trim_start_matches([',', ' ']) == name {
            return after.get(..end);
        }
        rest = after.get(end + 1..)?;
    }
}

fn whole(value: f64) -> Option<u32> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to lie within u32; a fraction of a request means nothing"
    )]
    (0.0..=f64::from(u32::MAX))
        .contains(&value)
        .then_some(value as u32)
}

fn add_u32(sum: &mut Option<u32>, value: f64) {
    if let Some(value) = whole(value) {
        *sum = Some(sum.unwrap_or(0).saturating_add(value));
    }
}

fn add_u64(sum: &mut Option<u64>, value: f64) {
    if value.is_finite() && value >= 0.0 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "finite and not negative; a float to integer cast saturates"
        )]
        let value = value as u64;
        *sum = Some(sum.unwrap_or(0).saturating_add(value));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tests::corpus::{METRICS, spoiled};

    const VLLM: &str = r#"
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",note="a \"quoted\" }, b=\"1",num_gpu_blocks="27913"} 1.0
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0 1700000000
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:prefix_cache_queries_total{engine="0"} 1.2e+06
vllm:prefix_cache_hits_total{engine="0"} 600000
"#;

    #[test]
    fn vllm_text_gives_capacity_and_load() {
        let report = WorkerReport::parse(VLLM.as_bytes());
        let expected = WorkerReport {
            kv_blocks: Some(Blocks::new(27_912)),
            block_size: BlockSize::new(16),
            kv_usage: Some(0.5),
            running: Some(5),
            waiting: Some(0),
            max_model_len: None,
            prefix_queries: Some(1_200_000),
            prefix_hits: Some(600_000),
        };
        assert_eq!(report, expected);
    }

    #[test]
    fn what_makes_no_sense_is_left_out() {
        for text in [
            "",
            "vllm:num_requests_running",
            "vllm:num_requests_running{",
            "vllm:num_requests_running{} NaN",
            "vllm:num_requests_running -1",
            "vllm:kv_cache_usage_perc 7",
            "vllm:cache_config_info{num_gpu_blocks=\"None\",block_size=\"0\"} 1",
            "vllm:cache_config_info{num_gpu_blocks=\"0\"} 1",
            "vllm:cache_config_info{num_gpu_blocks=\"1\"} 1",
            "vllm:cache_config_info{num_gpu_blocks=\"5} 1",
        ] {
            assert_eq!(
                WorkerReport::parse(text.as_bytes()),
                WorkerReport::default(),
                "{text}"
            );
        }
        let bytes = b"\xff\xfe\nvllm:num_requests_running 1\n\x00{\xc3";
        assert_eq!(
            WorkerReport::parse(bytes).running,
            Some(1),
            "one bad line spoils only itself"
        );
    }

    #[test]
    fn silence_keeps_what_was_said_before() {
        let old = WorkerReport::parse(VLLM.as_bytes());
        let new = WorkerReport {
            running: Some(9),
            ..WorkerReport::default()
        }
        .or(&old);
        assert_eq!((new.running, new.kv_blocks), (Some(9), old.kv_blocks));
    }

    proptest! {
        #[test]
        fn a_spoiled_report_says_only_what_can_be(bytes in spoiled(&METRICS)) {
            let report = WorkerReport::parse(&bytes);
            prop_assert!(report.kv_usage.is_none_or(|usage| (0.0..=1.0).contains(&usage)), "{:?}", report);
            // Lines stand alone: what surrounds a line does not change how it is read.
            let mut more = bytes.clone();
            more.extend_from_slice(b"\n# the end\n");
            prop_assert_eq!(WorkerReport::parse(&more), report);
        }
    }
}
