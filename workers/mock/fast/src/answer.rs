//! The bytes of the canned answers.

use std::fmt::Write as _;

use crate::spec::Spec;

pub(crate) const STREAM_HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
    cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";
pub(crate) const STREAM_END: &[u8] = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
pub(crate) const GARBAGE: &[u8] = b"\x16\x03\x01 this is not HTTP\r\n\r\n";

const COMPLETION: &str = concat!(
    r#"{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":"#,
    r#"{"role":"assistant","content":"The test passes now: the fixture was read twice, and the second read came back empty."},"#,
    r#""finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":8,"total_tokens":18},"#,
    r#""kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[1,2,3],"#,
    r#""remote_engine_id":"e1","remote_host":"127.0.0.1","remote_port":5600,"tp_size":1}}"#
);
const SERVER: &str = r#"{"model_path":"m","tokenizer_path":"m","is_generation":true,"served_model_name":"m","dp_size":1,"tp_size":1,"version":"0.5","model_id":"m"}"#;

/// An answer whose body is `body`.
pub(crate) fn whole(spec: &Spec, content_type: &str, body: &[u8]) -> Vec<u8> {
    // Writing to memory does not fail.
    let mut out = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: {content_type}\r\n",
        spec.status,
        reason(spec.status)
    );
    if let Some(span) = spec.retry_after_s {
        let _ = write!(out, "retry-after: {span}\r\n");
    }
    let packed = spec.gzip.then(|| gzip(body));
    if packed.is_some() {
        out += "content-encoding: gzip\r\n";
    }
    let body = packed.as_deref().unwrap_or(body);
    let _ = write!(out, "content-length: {}\r\n\r\n", body.len());
    let mut out = out.into_bytes();
    out.extend_from_slice(body);
    out
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        429 => "Too Many Requests",
        503 => "Service Unavailable",
        _ => "Said So",
    }
}

pub(crate) fn completion(spec: &Spec) -> Vec<u8> {
    if spec.status == 200 {
        return whole(spec, "application/json", COMPLETION.as_bytes());
    }
    refusal(spec, spec.status, "as asked")
}

pub(crate) fn refusal(spec: &Spec, status: u16, why: &str) -> Vec<u8> {
    let error = format!(r#"{{"error":{{"message":"{why}","type":"mock","code":{status}}}}}"#);
    let spec = Spec {
        status,
        ..spec.clone()
    };
    whole(&spec, "application/json", error.as_bytes())
}

/// The whole answer of a worker that has a role, with the text that its stream would have.
pub(crate) fn told(spec: &Spec, text: &str, usage: &str, params: Option<&str>) -> Vec<u8> {
    let params = params.unwrap_or("null");
    let body = format!(
        concat!(
            r#"{{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{{"index":0,"message":"#,
            r#"{{"role":"assistant","content":"{text}"}},"finish_reason":"length"}}],"usage":{usage},"kv_transfer_params":{params}}}"#
        ),
        text = text,
        usage = usage,
        params = params
    );
    whole(spec, "application/json", body.as_bytes())
}

/// An OpenAI usage object.
pub(crate) fn usage(prompt: usize, completion: u64, cached: usize) -> String {
    format!(
        r#"{{"prompt_tokens":{prompt},"completion_tokens":{completion},"total_tokens":{},"prompt_tokens_details":{{"cached_tokens":{cached}}}}}"#,
        prompt as u64 + completion
    )
}

/// The event that ends a stream whose client asked for its usage, as a chunk.
pub(crate) fn usage_event(out: &mut Vec<u8>, usage: &str) {
    let data = format!(
        concat!(
            r#"data: {{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{}}}"#,
            "\n\n"
        ),
        usage
    );
    out.extend_from_slice(format!("{:x}\r\n{data}\r\n", data.len()).as_bytes());
}

/// What a worker says of itself.
pub(crate) struct Facts {
    pub(crate) blocks: u64,
    pub(crate) max_model_len: u64,
    pub(crate) running: usize,
    pub(crate) served: u64,
    /// Prompt tokens computed here, and pulled from a prefiller.
    pub(crate) computed: usize,
    pub(crate) pulled: usize,
    pub(crate) refused: u64,
    pub(crate) stale: u64,
    pub(crate) started_ns: u64,
}

/// What a GET of `path` gets: what vLLM, and routers that ask for more, want to see.
pub(crate) fn fact(path: &str, facts: &Facts) -> Vec<u8> {
    let usual = Spec::new(1, 0);
    let json = |text: &str| whole(&usual, "application/json", text.as_bytes());
    match path {
        "/v1/models" => json(&models(facts.max_model_len)),
        "/version" => json(r#"{"version":"0.20.0"}"#),
        "/get_model_info" | "/model_info" | "/get_server_info" | "/server_info" => json(SERVER),
        "/mock" => json(&format!(
            r#"{{"served":{},"streams":{},"pulled_tokens":{},"refused":{},"stale":{}}}"#,
            facts.served, facts.running, facts.pulled, facts.refused, facts.stale
        )),
        "/metrics" => whole(
            &usual,
            "text/plain; version=0.0.4",
            metrics(facts).as_bytes(),
        ),
        _ => whole(&usual, "text/plain", b"OK"),
    }
}

fn models(max_model_len: u64) -> String {
    format!(
        r#"{{"object":"list","data":[{{"id":"m","object":"model","created":1,"owned_by":"vllm","root":"m","parent":null,"max_model_len":{max_model_len}}}]}}"#
    )
}

fn metrics(facts: &Facts) -> String {
    const LABELS: &str = r#"engine="0",model_name="m""#;
    let (blocks, running) = (facts.blocks, facts.running);
    let mut text = format!(
        "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {}.{:09}\n\
         # TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{{{LABELS}}} 0.1\n\
         # TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{{LABELS}}} {running}\n\
         vllm:num_requests_waiting{{{LABELS}}} 0\n\
         vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"{blocks}\",engine=\"0\"}} 1\n\
         # TYPE vllm:prompt_tokens_by_source_total counter\n",
        facts.started_ns / 1_000_000_000,
        facts.started_ns % 1_000_000_000
    );
    for (source, count) in [
        ("local_compute", facts.computed),
        ("local_cache_hit", 0),
        ("external_kv_transfer", facts.pulled),
    ] {
        // Writing to memory does not fail.
        let _ = writeln!(
            text,
            "vllm:prompt_tokens_by_source_total{{{LABELS},source=\"{source}\"}} {count}"
        );
    }
    text
}

/// One event of a stream as a chunk, with the clock's nanoseconds in it.
pub(crate) fn event(out: &mut Vec<u8>, now_ns: u64, text: &str) {
    const MIDDLE: &str = concat!(
        r#","id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","#,
        r#""choices":[{"index":0,"delta":{"content":""#
    );
    const REST: &str = concat!(r#""},"finish_reason":null}]}"#, "\n\n");
    // `data: {"ts":` and 19 digits.
    const SIZE: usize = 12 + 19 + MIDDLE.len() + REST.len();
    use std::io::Write as _;
    // Writing to memory does not fail.
    let _ = write!(
        out,
        "{:x}\r\ndata: {{\"ts\":{now_ns:019}{MIDDLE}{text}{REST}\r\n",
        SIZE + text.len()
    );
}

/// The text of a stream's first event, unless it echoes, and of all others.
pub(crate) const TOKEN: &str = " tok";

/// A gzip file whose one block is stored as it is.
pub(crate) fn gzip(body: &[u8]) -> Vec<u8> {
    let size = u16::try_from(body.len()).expect("canned answers are below 64 KiB");
    let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255, 1];
    out.extend_from_slice(&size.to_le_bytes());
    out.extend_from_slice(&(!size).to_le_bytes());
    out.extend_from_slice(body);
    out.extend_from_slice(&crc32(body).to_le_bytes());
    out.extend_from_slice(&u32::from(size).to_le_bytes());
    out
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| {
        if crc & 1 == 1 {
            (crc >> 1) ^ 0xedb8_8320
        } else {
            crc >> 1
        }
    };
    !bytes
        .iter()
        .fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Reader;

    #[test]
    fn events_and_answers_are_framed_as_they_say() {
        let mut wire = STREAM_HEAD.to_vec();
        event(&mut wire, 1_800_000_000_000_000_000, TOKEN);
        usage_event(&mut wire, &usage(3, 1, 2));
        wire.extend_from_slice(STREAM_END);
        let mut body = Vec::new();
        let (taken, is_complete) = Reader::new()
            .feed(&wire, |bytes| body.extend_from_slice(bytes))
            .unwrap();
        assert_eq!((taken, is_complete), (wire.len(), true));
        assert!(body.starts_with(b"data: {\"ts\":1800000000000000000,"));
        assert!(body.ends_with(b"\"cached_tokens\":2}}}\n\ndata: [DONE]\n\n"));
    }

    #[test]
    fn checksums_are_those_of_gzip() {
        // The check value that the CRC's definition gives for these nine bytes.
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }
}
