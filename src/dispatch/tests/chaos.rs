//! Many clients and workers, with faults in any order: whatever happens, each client gets one answer, each turn is settled,
//! and the books agree after every step.

use proptest::prelude::*;

use super::*;
use crate::error::Phase;

/// One thing that happens. Numbers choose among what is there.
#[derive(Debug, Clone)]
enum Step {
    /// A client asks: which tenant, which conversation (or none), streamed, how much text.
    Ask {
        tenant: u8,
        conversation: Option<u8>,
        stream: bool,
        bytes: u16,
    },
    /// A worker answers some client's request as it should.
    Serve(usize),
    /// It fails that client's request.
    Fail(usize, Failure),
    /// It answers with this status and this body.
    Say(usize, u16, &'static str),
    /// A piece of a stream comes, cut at any byte.
    Piece(usize, &'static str, usize),
    /// A stream ends.
    End(usize),
    Leave(usize),
    /// The door lets go of the request without a word.
    Drop(usize),
    Later(u64),
    Join(bool),
    LoseWorker(usize),
    Drain(usize),
    Sweep,
}

fn failure() -> impl Strategy<Value = Failure> {
    prop::sample::select(vec![
        Failure::Connect,
        Failure::Unreachable,
        Failure::NoSocket,
        Failure::Reset,
        Failure::Timeout(TimeoutKind::Connect),
        Failure::Timeout(TimeoutKind::FirstByte),
        Failure::Timeout(TimeoutKind::Idle),
        Failure::TooLarge,
        Failure::Protocol,
    ])
}

fn step() -> impl Strategy<Value = Step> {
    let which = any::<usize>();
    let status = prop::sample::select(vec![200_u16, 204, 302, 400, 404, 429, 500, 502, 503]);
    let body = prop::sample::select(vec![
        "",
        "<html>",
        "{}",
        ANSWER,
        PREFILLED,
        r#"{"error":{"message":"no"}}"#,
    ]);
    let piece = prop::sample::select(vec![
        ROLE,
        WORD,
        CALL,
        USAGE,
        DONE,
        ": beat\n\n",
        "garbage\n\n",
        "data: {\"error\":{\"message\":\"no\"}}\n\n",
    ]);
    prop_oneof![
        6 => (0..2_u8, prop::option::of(0..3_u8), any::<bool>(), 0..6_000_u16)
            .prop_map(|(tenant, conversation, stream, bytes)| Step::Ask { tenant, conversation, stream, bytes }),
        10 => which.prop_map(Step::Serve),
        3 => (which, failure()).prop_map(|(which, failure)| Step::Fail(which, failure)),
        3 => (which, status, body).prop_map(|(which, status, body)| Step::Say(which, status, body)),
        6 => (which, piece, any::<usize>()).prop_map(|(which, piece, cut)| Step::Piece(which, piece, cut)),
        3 => which.prop_map(Step::End),
        2 => which.prop_map(Step::Leave),
        1 => which.prop_map(Step::Drop),
        2 => (0..40_u64).prop_map(Step::Later),
        1 => any::<bool>().prop_map(Step::Join),
        1 => which.prop_map(Step::LoseWorker),
        1 => which.prop_map(Step::Drain),
        1 => Just(Step::Sweep),
    ]
}

/// What a client's door is doing.
enum Doing {
    Waiting,
    Called(Phase),
    Streaming,
    Collecting,
    Listening,
    Relaying,
}

struct Request {
    dispatch: Dispatch,
    doing: Doing,
}

struct Stage {
    world: World,
    requests: Vec<Request>,
    joined: usize,
    now: Timestamp,
}

impl Stage {
    fn new() -> Self {
        let config = Config {
            queue_limit: 4,
            ..Config::default()
        };
        let world = World::new(1, 2, DispatchConfig::default(), config);
        Self {
            requests: Vec::new(),
            joined: 3,
            now: world.now,
            world,
        }
    }

    /// The request and its index, if there is one.
    fn pick(&mut self, which: usize) -> Option<usize> {
        (!self.requests.is_empty()).then(|| which % self.requests.len())
    }

    /// Obeys; a request that is over leaves the stage with its one answer.
    fn obey(&mut self, index: usize, action: Action) {
        let doing = match action {
            Action::Wait { .. } => Doing::Waiting,
            Action::Call(upstream) => Doing::Called(upstream.phase),
            Action::Stream(_) => Doing::Streaming,
            Action::Collect { .. } => Doing::Collecting,
            Action::Listen => Doing::Listening,
            Action::Relay { .. } => Doing::Relaying,
            Action::Reply { status, body, .. } => {
                if status >= 400 && body.starts_with(b"{\"error\":{\"message\":") {
                    let object: serde_json::Value =
                        serde_json::from_slice(&body).expect("an error object");
                    assert!(object["error"]["message"].is_string());
                }
                return self.remove(index);
            }
            Action::Finish(_) => return self.remove(index),
        };
        self.requests[index].doing = doing;
    }

    fn remove(&mut self, index: usize) {
        let request = self.requests.swap_remove(index);
        assert!(request.dispatch.is_over(), "an answer is the end");
    }

    fn ask(&mut self, tenant: u8, conversation: Option<u8>, stream: bool, bytes: u16) {
        let credential = format!("sk-{tenant}");
        let id = conversation.map(|number| format!("task-{number}"));
        let mut headers = vec![("authorization", &*credential)];
        headers.extend(id.as_deref().map(|id| ("x-conversation-id", id)));
        let more = format!(r#","stream":{stream},"x":"{}""#, "a".repeat(bytes.into()));
        let reply = r#"{"role":"assistant","content":"ok"}"#;
        let body = format!(
            r#"{{"model":"m","messages":[{{"role":"user"}},{reply},{{"role":"user"}}]{more}}}"#
        );
        let dispatch =
            self.world
                .dispatcher
                .open(Endpoint::Chat, list(&headers), body.into(), self.now);
        self.requests.push(Request {
            dispatch,
            doing: Doing::Waiting,
        });
        let index = self.requests.len() - 1;
        let action = self.requests[index].dispatch.start(self.now);
        self.obey(index, action);
    }

    fn say(&mut self, index: usize, status: u16, body: &'static str) {
        let (now, json) = (self.now, list(&[("content-type", "application/json")]));
        let Request { dispatch, doing } = &mut self.requests[index];
        let action = match doing {
            Doing::Waiting => dispatch.admitted(now),
            Doing::Called(_) | Doing::Collecting => {
                dispatch.answered(status, &json, &Bytes::from_static(body.as_bytes()), now)
            }
            Doing::Streaming => dispatch.head(status, &json, now),
            Doing::Listening | Doing::Relaying => return,
        };
        self.obey(index, action);
    }

    fn serve(&mut self, index: usize) {
        let now = self.now;
        match self.requests[index].doing {
            Doing::Called(Phase::Prefill) => self.say(index, 200, PREFILLED),
            Doing::Waiting | Doing::Called(Phase::Decode) | Doing::Collecting => {
                self.say(index, 200, ANSWER);
            }
            Doing::Streaming => {
                let head = list(&[("content-type", "text/event-stream")]);
                let action = self.requests[index].dispatch.head(200, &head, now);
                self.obey(index, action);
            }
            Doing::Listening | Doing::Relaying => {
                for event in [WORD, USAGE, DONE] {
                    self.piece(index, event.as_bytes());
                }
            }
        }
    }

    fn end(&mut self, index: usize) {
        let now = self.now;
        match self.requests[index].doing {
            Doing::Relaying => {
                self.requests[index].dispatch.end(now);
                self.remove(index);
            }
            Doing::Listening => {
                let action = self.requests[index].dispatch.heard(&Bytes::new(), now);
                self.obey(index, action);
            }
            _ => {}
        }
    }

    /// A piece of a stream; also where none belongs.
    fn piece(&mut self, index: usize, bytes: &'static [u8]) {
        let (now, bytes) = (self.now, Bytes::from_static(bytes));
        let Request { dispatch, doing } = &mut self.requests[index];
        if matches!(doing, Doing::Listening) && !bytes.is_empty() {
            let action = dispatch.heard(&bytes, now);
            self.obey(index, action);
        } else {
            dispatch.chunk(&bytes, now);
        }
    }

    fn play(&mut self, step: &Step) {
        let now = self.now;
        match *step {
            Step::Ask {
                tenant,
                conversation,
                stream,
                bytes,
            } => self.ask(tenant, conversation, stream, bytes),
            Step::Serve(which) => {
                if let Some(index) = self.pick(which) {
                    self.serve(index);
                }
            }
            Step::Fail(which, failure) => {
                if let Some(index) = self.pick(which)
                    && !matches!(self.requests[index].doing, Doing::Waiting)
                {
                    let action = self.requests[index].dispatch.failed(failure, now);
                    self.obey(index, action);
                }
            }
            Step::Say(which, status, body) => {
                if let Some(index) = self.pick(which) {
                    self.say(index, status, body);
                }
            }
            Step::Piece(which, text, cut) => {
                if let Some(index) = self.pick(which) {
                    let (head, tail) = text.split_at(cut % text.len());
                    let before = self.requests.len();
                    for part in [head, tail] {
                        if self.requests.len() == before {
                            self.piece(index, part.as_bytes());
                        }
                    }
                }
            }
            Step::End(which) => {
                if let Some(index) = self.pick(which) {
                    self.end(index);
                }
            }
            Step::Leave(which) => {
                if let Some(index) = self.pick(which) {
                    self.requests[index].dispatch.client_gone(now);
                    self.remove(index);
                }
            }
            Step::Drop(which) => {
                if let Some(index) = self.pick(which) {
                    drop(self.requests.swap_remove(index));
                }
            }
            Step::Later(seconds) => {
                self.now = Timestamp(now.0 + seconds * SECOND);
                self.world.router.tick(self.now);
            }
            Step::Join(decodes) => {
                let role = if decodes {
                    Role::Decoder
                } else {
                    Role::Prefiller
                };
                self.world.join(&format!("w{}", self.joined), role);
                self.joined += 1;
            }
            Step::LoseWorker(which) => {
                let id = WorkerId::new(u16::try_from(which % self.joined).unwrap()).unwrap();
                self.world
                    .router
                    .lose(id, crate::event::LostReason::Silent, now);
            }
            Step::Drain(which) => {
                let id = WorkerId::new(u16::try_from(which % self.joined).unwrap()).unwrap();
                self.world.router.drain(id, now);
            }
            Step::Sweep => drop(self.world.router.sweep(now)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(400), ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_every_turn_is_settled(steps in prop::collection::vec(step(), 1..120)) {
        let mut stage = Stage::new();
        for step in &steps {
            stage.play(step);
            prop_assert_eq!(stage.world.router.check(), Ok(()), "after {:?}", step);
        }
        // Those who wait are answered by their deadline; all others leave.
        stage.now = Timestamp(stage.now.0 + 31 * SECOND);
        stage.world.router.tick(stage.now);
        while !stage.requests.is_empty() {
            if matches!(stage.requests[0].doing, Doing::Waiting) {
                let action = stage.requests[0].dispatch.admitted(stage.now);
                prop_assert!(!matches!(action, Action::Wait { .. }), "its deadline has passed");
                stage.obey(0, action);
            } else {
                stage.requests[0].dispatch.client_gone(stage.now);
                stage.remove(0);
            }
        }
        stage.world.settled();
        let snapshot = stage.world.router.snapshot(stage.now);
        for row in &snapshot.workers {
            prop_assert_eq!((row.reserved.get(), row.running, row.queued.0), (0, 0, 0), "{}", row.worker.name);
        }
        prop_assert_eq!((snapshot.waiting, snapshot.waiting_tail), (0, 0));
    }
}
