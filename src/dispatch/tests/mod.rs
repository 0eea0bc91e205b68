//! Scenarios: workers play their scripts against a `Dispatch`, time is a variable.

mod bad_input;
mod chaos;
mod conversations;
mod failures;
mod flow;
mod leaving;
mod streams;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::config::Config;
use crate::event::{Event, Observer};
use crate::fleet::{Role, WorkerSpec};
use crate::identity::{Identity, IdentityLimits};
use crate::router::Router;
use crate::units::{Blocks, Timestamp, WorkerId};

const SECOND: u64 = 1_000_000_000;

/// What the tests' prefiller answers.
const PREFILLED: &str = r#"{"choices":[{"message":{"content":"x"},"finish_reason":"length"}],"usage":{"prompt_tokens":40,"completion_tokens":1},"kv_transfer_params":{"remote_block_ids":[[1, 2]],"remote_port":5600}}"#;
const PARAMS: &str = r#""kv_transfer_params":{"remote_block_ids":[[1, 2]],"remote_port":5600}"#;
const ANSWER: &str = r#"{"choices":[{"message":{"content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":40,"completion_tokens":10}}"#;
const ROLE: &str =
    "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
const WORD: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"hello\"}}]}\n\n";
const CALL: &str = "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0}]},\"finish_reason\":\"tool_calls\"}]}\n\n";
const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":40,\"completion_tokens\":10}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

/// Hears everything.
#[derive(Default)]
struct Log(Mutex<Vec<Event>>);

impl Observer for Log {
    fn on(&self, event: &Event) {
        self.0.lock().unwrap().push(event.clone());
    }
}

/// A fleet and its dispatcher.
struct World {
    router: Arc<Router>,
    dispatcher: Dispatcher,
    log: Arc<Log>,
    now: Timestamp,
}

/// One client with its request.
struct Client<'a> {
    world: &'a World,
    dispatch: Dispatch,
    now: Timestamp,
    /// The head is held back.
    listens: bool,
    /// The head, once it was let go.
    headers: Vec<Header>,
}

/// 100 blocks of 16 tokens each on every decoder.
const KV_BLOCKS: u64 = 100;

fn world(prefillers: usize, decoders: usize) -> World {
    World::new(
        prefillers,
        decoders,
        DispatchConfig::default(),
        Config::default(),
    )
}

impl World {
    fn new(prefillers: usize, decoders: usize, dispatch: DispatchConfig, config: Config) -> Self {
        let identity = Arc::new(Identity::new([7; 16], IdentityLimits::default()));
        let log = Arc::new(Log::default());
        let router = Router::new(config)
            .unwrap()
            .with_observer(identity.clone())
            .with_observer(log.clone());
        let router = Arc::new(router);
        let dispatcher = Dispatcher::new(router.clone(), identity, dispatch).unwrap();
        let world = Self {
            router,
            dispatcher,
            log,
            now: Timestamp(SECOND),
        };
        for number in 0..prefillers {
            world.join(&format!("p{number}"), Role::Prefiller);
        }
        for number in 0..decoders {
            world.join(&format!("d{number}"), Role::Decoder);
        }
        world
    }

    fn join(&self, name: &str, role: Role) -> WorkerId {
        let mut spec = WorkerSpec::new(format!("http://{name}:8000"), role);
        spec.name = Some(name.to_owned());
        if role.decodes() {
            spec.kv_blocks = Some(Blocks::new(KV_BLOCKS));
        }
        self.router.join(spec, self.now).unwrap()
    }

    fn open(&self, headers: &[(&str, &str)], body: &str) -> Client<'_> {
        self.open_at(Endpoint::Chat, headers, body.as_bytes())
    }

    fn open_at(&self, endpoint: Endpoint, headers: &[(&str, &str)], body: &[u8]) -> Client<'_> {
        self.open_bytes(endpoint, headers, Bytes::copy_from_slice(body))
    }

    fn open_bytes(&self, endpoint: Endpoint, headers: &[(&str, &str)], body: Bytes) -> Client<'_> {
        let dispatch = self
            .dispatcher
            .open(endpoint, list(headers), body, self.now);
        Client {
            world: self,
            dispatch,
            now: self.now,
            listens: false,
            headers: Vec::new(),
        }
    }

    fn events(&self, wanted: impl Fn(&Event) -> bool) -> usize {
        self.log
            .0
            .lock()
            .unwrap()
            .iter()
            .filter(|event| wanted(event))
            .count()
    }

    fn booked(&self) -> u64 {
        self.router
            .snapshot(self.now)
            .workers
            .iter()
            .map(|row| u64::from(row.booked.get()))
            .sum()
    }

    /// Tokens that all workers generated.
    fn generated(&self) -> u64 {
        let workers = self.router.snapshot(self.now).workers;
        workers.iter().map(|row| row.work.output).sum()
    }

    fn conversations(&self) -> usize {
        self.router.snapshot(self.now).conversations
    }

    fn counter(&self, name: &str) -> u64 {
        self.dispatcher
            .counters()
            .into_iter()
            .find(|(found, _)| *found == name)
            .unwrap()
            .1
    }

    /// Nobody holds anything but the conversations that live on: the books agree.
    #[track_caller]
    fn settled(&self) {
        self.router.check().expect("the accounting identity");
        let begun = self.events(|event| matches!(event, Event::TurnStarted { .. }));
        let ended = self
            .events(|event| matches!(event, Event::TurnFinished { .. } | Event::TurnFailed { .. }));
        assert_eq!(begun, ended, "every turn is settled once");
    }

    /// As if the request had never come.
    #[track_caller]
    fn untouched(&self) {
        self.settled();
        assert_eq!(
            (self.booked(), self.conversations()),
            (0, 0),
            "nothing booked, no conversation"
        );
    }

    fn decoder_of(&self, client: &Client<'_>) -> Option<WorkerId> {
        Some(
            self.router
                .conversation(client.dispatch.conversation()?)?
                .decoder?
                .id,
        )
    }
}

impl Client<'_> {
    fn later(&mut self, seconds: u64) -> &mut Self {
        self.now = Timestamp(self.now.0 + seconds * SECOND);
        self
    }

    fn start(&mut self) -> Action {
        self.dispatch.start(self.now)
    }

    fn admitted(&mut self) -> Action {
        self.dispatch.admitted(self.now)
    }

    fn answered(&mut self, status: u16, body: &str) -> Action {
        self.answered_with(status, &[("content-type", "application/json")], body)
    }

    fn answered_with(&mut self, status: u16, headers: &[(&str, &str)], body: &str) -> Action {
        self.dispatch.answered(
            status,
            &list(headers),
            &Bytes::from(body.to_owned()),
            self.now,
        )
    }

    fn stream_begins(&mut self) -> Action {
        self.dispatch.head(
            200,
            &list(&[("content-type", "text/event-stream; charset=utf-8")]),
            self.now,
        )
    }

    /// A stream whose head is held back.
    #[track_caller]
    fn listen(&mut self) {
        assert_eq!(self.stream_begins(), Action::Listen);
        self.listens = true;
    }

    fn heard(&mut self, text: &str) -> Action {
        self.dispatch.heard(&Bytes::from(text.to_owned()), self.now)
    }

    /// A piece comes; what the client sees of the stream then.
    #[track_caller]
    fn chunk(&mut self, text: &str) -> String {
        if !self.listens {
            return string(&self.dispatch.chunk(&Bytes::from(text.to_owned()), self.now));
        }
        if text.is_empty() {
            return String::new();
        }
        match self.heard(text) {
            Action::Listen => String::new(),
            Action::Relay {
                status: 200,
                headers,
                first,
            } => {
                (self.listens, self.headers) = (false, headers);
                string(&first)
            }
            other => panic!("expected a stream, got {other:?}"),
        }
    }

    fn end(&mut self) -> String {
        string(&self.dispatch.end(self.now))
    }

    fn failed(&mut self, failure: Failure) -> Action {
        self.dispatch.failed(failure, self.now)
    }

    fn gone(&mut self) {
        self.dispatch.client_gone(self.now);
        assert!(self.dispatch.is_over());
    }

    /// Plays a whole turn that goes well, with or without a prefiller; gives the decoder's name.
    #[track_caller]
    fn succeed(&mut self) -> String {
        let mut action = self.start();
        if let Action::Call(upstream) = &action
            && upstream.phase == crate::error::Phase::Prefill
        {
            action = self.answered(200, PREFILLED);
        }
        match action {
            Action::Call(upstream) => {
                self.answered(200, ANSWER).reply(200);
                upstream.name.to_string()
            }
            Action::Stream(upstream) => {
                self.listen();
                for event in [ROLE, WORD, USAGE, DONE] {
                    self.chunk(event);
                }
                assert_eq!(self.end(), "");
                upstream.name.to_string()
            }
            other => panic!("expected a request to a decoder, got {other:?}"),
        }
    }
}

fn list(headers: &[(&str, &str)]) -> Vec<Header> {
    let bytes = |text: &str| Bytes::from(text.to_owned());
    headers
        .iter()
        .map(|(name, value)| (bytes(name), bytes(value)))
        .collect()
}

fn string(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A body with one message from the user.
fn chat(more: &str) -> String {
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"hi"}}]{more}}}"#)
}

fn streamed() -> String {
    chat(r#","stream":true"#)
}

const TASK: [(&str, &str); 1] = [("x-conversation-id", "task-42")];

/// What a test expects of an action.
trait Expect {
    fn call(self, worker: &str) -> Upstream;
    fn stream(self, worker: &str) -> Upstream;
    fn relay(self) -> Vec<Header>;
    fn reply(self, status: u16) -> (Vec<Header>, String);
    fn error(self, status: u16, code: &str) -> serde_json::Value;
    fn finish(self) -> String;
    fn wait(self) -> Timestamp;
}

impl Expect for Action {
    #[track_caller]
    fn call(self, worker: &str) -> Upstream {
        let Self::Call(upstream) = self else {
            panic!("expected a call of {worker}, got {self:?}")
        };
        assert_eq!(&*upstream.name, worker);
        upstream
    }

    #[track_caller]
    fn stream(self, worker: &str) -> Upstream {
        let Self::Stream(upstream) = self else {
            panic!("expected a stream from {worker}, got {self:?}")
        };
        assert_eq!(&*upstream.name, worker);
        upstream
    }

    #[track_caller]
    fn relay(self) -> Vec<Header> {
        let Self::Relay {
            status: 200,
            headers,
            ..
        } = self
        else {
            panic!("expected a relay, got {self:?}")
        };
        headers
    }

    #[track_caller]
    fn reply(self, wanted: u16) -> (Vec<Header>, String) {
        let Self::Reply {
            status,
            headers,
            body,
        } = self
        else {
            panic!("expected a reply, got {self:?}")
        };
        assert_eq!(status, wanted, "{}", string(&body));
        (headers, string(&body))
    }

    #[track_caller]
    fn error(self, status: u16, code: &str) -> serde_json::Value {
        let (headers, body) = self.reply(status);
        assert_eq!(
            value(&headers, "content-type").as_deref(),
            Some("application/json")
        );
        let mut object: serde_json::Value = serde_json::from_str(&body).expect("an error object");
        let error = object["error"].take();
        assert_eq!(error["code"], code, "{body}");
        assert!(
            error["message"]
                .as_str()
                .is_some_and(|message| !message.is_empty())
        );
        error
    }

    #[track_caller]
    fn finish(self) -> String {
        let Self::Finish(bytes) = self else {
            panic!("expected the end, got {self:?}")
        };
        string(&bytes)
    }

    #[track_caller]
    fn wait(self) -> Timestamp {
        let Self::Wait { deadline } = self else {
            panic!("expected to wait, got {self:?}")
        };
        deadline
    }
}

fn value(headers: &[Header], name: &str) -> Option<String> {
    super::headers::get(headers, name).map(string)
}

fn body_of(upstream: &Upstream) -> String {
    string(&upstream.body)
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}
