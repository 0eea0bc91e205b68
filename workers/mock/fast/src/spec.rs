//! How a request is to be answered: words such as `status=429 retry_after=7`.
//!
//! They come, the first found counting, from the header `x-mock`, from the body's field `"user": "mock ..."`, or from what
//! was last put to `/mock`. Some routers drop headers and some drop the field: what all are to meet goes to `/mock`.

/// What to do instead of answering at once, whole and well.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spec {
    /// Events of a streamed answer.
    pub(crate) chunks: u64,
    /// Between two events; 0 writes as fast as the socket takes them.
    pub(crate) interval_ms: u64,
    /// Before the head of the answer.
    pub(crate) latency_ms: u64,
    /// Answers when something without this is told to the worker.
    pub(crate) hold: bool,
    pub(crate) status: u16,
    pub(crate) retry_after_s: Option<u64>,
    /// Bytes of the answer after which nothing more comes, though the connection stays.
    pub(crate) stall_at: Option<usize>,
    /// Bytes of the answer after which the connection is reset.
    pub(crate) reset_at: Option<usize>,
    /// Bytes of the answer after which the connection is closed, though the answer is not over.
    pub(crate) close_at: Option<usize>,
    /// What the answer's text begins with, so that the asker knows its own.
    pub(crate) echo: String,
    /// Bytes that are no HTTP.
    pub(crate) garbage: bool,
    pub(crate) gzip: bool,
}

impl Spec {
    pub(crate) fn new(chunks: u64, interval_ms: u64) -> Self {
        Self {
            chunks,
            interval_ms,
            latency_ms: 0,
            hold: false,
            status: 200,
            retry_after_s: None,
            stall_at: None,
            reset_at: None,
            close_at: None,
            echo: String::new(),
            garbage: false,
            gzip: false,
        }
    }

    /// This one, changed as `words` say; the word that is not known, if one is not.
    pub(crate) fn with(&self, words: &str) -> Result<Self, String> {
        let mut spec = self.clone();
        for word in words.split_ascii_whitespace() {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let number = || value.parse::<u64>().map_err(|_| word.to_owned());
            let size = || value.parse::<usize>().map_err(|_| word.to_owned());
            match name {
                "flat" => spec.interval_ms = 0,
                "hold" => spec.hold = true,
                "chunks" => spec.chunks = number()?.max(1),
                "interval_ms" => spec.interval_ms = number()?,
                "latency_ms" => spec.latency_ms = number()?,
                "status" => spec.status = value.parse().map_err(|_| word.to_owned())?,
                "retry_after" => spec.retry_after_s = Some(number()?),
                "stall_at" => spec.stall_at = Some(size()?),
                "reset_at" => spec.reset_at = Some(size()?),
                "close_at" => spec.close_at = Some(size()?),
                "echo"
                    if value
                        .bytes()
                        .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)) =>
                {
                    value.clone_into(&mut spec.echo);
                }
                "garbage" => spec.garbage = true,
                "gzip" => spec.gzip = true,
                _ => return Err(word.to_owned()),
            }
        }
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_change_what_they_name_and_unknown_ones_are_refused() {
        let usual = Spec::new(64, 20);
        let told = usual
            .with("flat chunks=3 status=429 retry_after=7")
            .unwrap();
        assert_eq!((told.interval_ms, told.chunks), (0, 3));
        assert_eq!((told.status, told.retry_after_s), (429, Some(7)));
        assert_eq!(usual.with("").unwrap(), usual);
        assert_eq!(usual.with("echo=task-7.3").unwrap().echo, "task-7.3");
        assert!(usual.with("echo=\"").is_err(), "it stands in JSON");
        assert_eq!(usual.with("flat slow").unwrap_err(), "slow");
        assert_eq!(usual.with("chunks=many").unwrap_err(), "chunks=many");
    }
}
