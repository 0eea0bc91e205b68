//! Agents: they resend their history, fan out, try again, leave, and compare every answer with the only right one.

use std::sync::Arc;

use bytes::Bytes;
use conserve::dispatch::{Endpoint, Header};

use super::door::Request;
use super::draw::Draw;
use super::host;
use super::judge::Judge;
use super::plan::{FOR_CLIENT, SECOND};
use super::world::{Due, World};

/// How far a conversation has come.
#[derive(Debug, Clone, Default)]
pub struct Agent {
    /// Messages as JSON objects.
    history: Vec<String>,
    /// Requests of the turn without an answer.
    open: u64,
    /// The main branch's answer.
    answer: Option<String>,
    /// The longest `Retry-After`, seconds.
    told_to_wait: u64,
}

const TRIES: u64 = 3;

impl World {
    pub fn ask(&mut self, talk: usize, turn: usize, attempt: u64) -> Result<(), String> {
        let plan = Arc::clone(&self.plan);
        let (told, what) = (&plan.talks[talk], &plan.talks[talk].turns[turn]);
        let mut draw = Draw::of(plan.seed, &[FOR_CLIENT, talk as u64, turn as u64]);
        let mark = draw.bits();
        let filler = "lorem é \\\"ipsum\\\" ".repeat(what.text_bytes / 17);
        self.agents[talk].open = what.branches;
        self.agents[talk].answer = None;
        self.agents[talk].told_to_wait = 0;
        let mut asked = Vec::new();
        for branch in 0..what.branches {
            let mut messages = self.agents[talk].history.clone();
            messages.push(format!(r#"{{"role":"user","content":"talk {talk} turn {turn} branch {branch} {mark:x} {filler}"}}"#));
            let messages: Arc<str> = format!("[{}]", messages.join(",")).into();
            let body = format!(
                r#"{{"model":"m","temperature":0.10,"messages":{messages},"stream":{}}}"#,
                what.stream
            );
            let mut headers = vec![header(
                "authorization",
                &format!("Bearer sk-{}", told.tenant),
            )];
            if let Some(id) = told.id {
                headers.push(header("x-conversation-id", &format!("task-{id}")));
            }
            let now = self.now();
            let dispatch = self
                .dispatcher
                .open(Endpoint::Chat, headers, Bytes::from(body), now);
            let index = self.requests.len();
            self.requests.push(Request::new(
                dispatch,
                (talk, turn, attempt, branch),
                messages,
                what.stream,
            ));
            asked.push(index);
            if let Some(after) = what.leaves.filter(|_| branch == 0 && attempt == 0) {
                self.plan_in(after, Due::Leave { request: index });
            }
        }
        for index in asked {
            self.note(|| format!("talk {talk} turn {turn} try {attempt}: request {index}"));
            let now = self.now();
            let action = self.requests[index].dispatch.start(now);
            if let Some(key) = self.requests[index].dispatch.conversation() {
                self.judge.belongs(key, told.tenant)?;
            }
            self.obey(index, action)?;
        }
        Ok(())
    }

    /// A request has its whole answer: a reply, or a stream that ended.
    pub fn answered(
        &mut self,
        index: usize,
        reply: Option<(u16, Vec<Header>, Bytes)>,
    ) -> Result<(), String> {
        let request = &self.requests[index];
        let right = host::text_for(host::hash(&request.messages));
        let told = match reply {
            Some((status, headers, body)) => {
                if let Some((_, seconds)) =
                    headers.iter().find(|(name, _)| &name[..] == b"retry-after")
                {
                    let seconds: u64 = std::str::from_utf8(seconds)
                        .ok()
                        .and_then(|text| text.parse().ok())
                        .ok_or("Retry-After is no number")?;
                    let wait = &mut self.agents[request.talk].told_to_wait;
                    *wait = seconds.min(60).max(*wait);
                }
                Judge::reply(status, &body, request.streamed)?
            }
            None => Judge::stream(request.relayed.as_deref().unwrap_or_default())?,
        };
        self.note(|| format!("request {index} is answered: {told:?}"));
        if let Some(text) = &told
            && *text != right
        {
            return Err(format!(
                "request {index} got the text {text:?} where {right:?} is right"
            ));
        }
        self.branch_over(index, told);
        Ok(())
    }

    pub fn left(&mut self, index: usize) {
        self.branch_over(index, None);
    }

    fn branch_over(&mut self, index: usize, text: Option<String>) {
        let Request {
            talk,
            turn,
            attempt,
            branch,
            ..
        } = self.requests[index];
        let agent = &mut self.agents[talk];
        agent.open -= 1;
        if branch == 0 {
            agent.answer = text;
        }
        if agent.open > 0 {
            return;
        }
        let turns = &self.plan.talks[talk].turns;
        match self.agents[talk].answer.take() {
            Some(text) => {
                let main = self
                    .requests
                    .iter()
                    .rev()
                    .find(|one| (one.talk, one.turn, one.branch) == (talk, turn, 0))
                    .expect("it was asked");
                let said = main.messages[1..main.messages.len() - 1].to_owned();
                let agent = &mut self.agents[talk];
                agent.history = vec![
                    said,
                    format!(r#"{{"role":"assistant","content":"{text}"}}"#),
                ];
                if turn + 1 < turns.len() && !self.without.last_turns.contains(&(talk, turn + 1)) {
                    let gap = turns[turn + 1].gap;
                    self.plan_in(
                        gap,
                        Due::Ask {
                            talk,
                            turn: turn + 1,
                            attempt: 0,
                        },
                    );
                } else {
                    self.pending -= 1;
                }
            }
            None if attempt + 1 < TRIES => {
                let wait = self.agents[talk].told_to_wait.max(1) * SECOND;
                self.plan_in(
                    wait,
                    Due::Ask {
                        talk,
                        turn,
                        attempt: attempt + 1,
                    },
                );
            }
            None => self.pending -= 1,
        }
    }
}

fn header(name: &str, value: &str) -> Header {
    (
        Bytes::copy_from_slice(name.as_bytes()),
        Bytes::copy_from_slice(value.as_bytes()),
    )
}
