//! What an engine did for a turn, up to the end of its conversation.

use super::super::engine::{Outcome, Work};
use super::super::events::{What, nanosecond};
use super::super::flight::Stage;
use super::super::gaps::GapStats;
use super::super::record::TurnRow;
use super::super::scenario::Retention;
use super::World;
use crate::event::Usage;
use crate::units::{Timestamp, Tokens};

impl World<'_> {
    pub(super) fn step_ended(&mut self, engine: usize) {
        let mut outcomes = Vec::new();
        self.engines[engine].finish(self.now, &mut outcomes);
        for outcome in outcomes {
            match outcome {
                Outcome::FirstToken {
                    conversation,
                    spent,
                } => {
                    let flight = &mut self.flights[conversation];
                    flight.until_first = flight.ledger.spent() + spent;
                    self.first_token(conversation);
                }
                Outcome::Prefilled { conversation, work } => {
                    self.note_work(conversation, &work);
                    self.prefilled(conversation, &work);
                }
                Outcome::Finished {
                    conversation,
                    work,
                    gaps,
                } => {
                    self.note_work(conversation, &work);
                    self.turn_ended(conversation, self.now, gaps);
                }
            }
        }
        self.touch(engine);
    }

    fn first_token(&mut self, conversation: usize) {
        let flight = &mut self.flights[conversation];
        flight.row.first_token_s = self.now;
        let Some(turn) = flight.running.as_mut() else {
            return;
        };
        turn.handed_over(self.at);
        turn.first_token(self.at);
    }

    /// What an engine did for the turn at hand.
    fn note_work(&mut self, conversation: usize, work: &Work) {
        let flight = &mut self.flights[conversation];
        flight.ledger.take_over(work.spent, self.now);
        let row = &mut flight.row;
        if row.prefill_start_s.is_nan() {
            let queued_since = row.admitted_s;
            row.prefill_start_s = work.started_s;
            row.engine_queue_s = (work.started_s - queued_since - row.transfer_s).max(0.0);
            row.cached_tokens = work.cached;
        }
        if row.prefill_end_s.is_nan() {
            row.prefill_end_s = row.first_token_s;
            if !row.first_token_s.is_nan() {
                row.compute_s += row.first_token_s - work.started_s;
            }
        }
        row.prefilled_tokens += work.computed;
        row.recomputed_tokens += work.recomputed;
        row.preemptions += work.preemptions;
    }

    /// The last token of the turn at hand came at `at`.
    pub(in crate::sim) fn turn_ended(&mut self, conversation: usize, at: f64, gaps: GapStats) {
        let spec = self.spec(conversation);
        let (prompt, output) = self.told(conversation);
        let flight = &mut self.flights[conversation];
        let mut row = std::mem::replace(&mut flight.row, TurnRow::new(conversation, flight.turn));
        row.last_token_s = at;
        row.output_tokens = flight.output;
        row.set_gaps(gaps);
        let first = Timestamp(nanosecond(row.first_token_s));
        if let Some(mut turn) = flight.running.take() {
            turn.handed_over(self.at);
            if spec.visible {
                turn.effective(first, self.at);
            }
            let usage = Usage {
                prompt: Some(prompt),
                output: Some(output),
                cached: Some(Tokens(row.cached_tokens)),
            };
            turn.finish(usage, self.at);
        }
        if spec.visible && flight.conversation.ttfet_s.is_nan() {
            flight.conversation.ttfet_s = row.first_token_s - flight.conversation.arrival_s;
            flight.conversation.ttfet_parts_s = flight.until_first.0;
        }
        flight.home = Some(flight.decoder);
        flight.history = spec.prompt + flight.output - 1;
        flight.conversation.turns_done += 1;
        flight.turn += 1;
        self.rows.push(row);
        if self.flights[conversation].turn == self.workload.conversations[conversation].turns {
            self.ended += 1;
            self.flights[conversation].conversation.status = "finished";
            return self.end_conversation(conversation);
        }
        let tool_s = self.spec(conversation).gap_s;
        let flight = &mut self.flights[conversation];
        if flight.conversation.ttfet_s.is_nan() {
            flight.conversation.tool_s += tool_s;
        }
        flight.stage = Stage::Gap;
        // The turn is sent when its tool is done.
        self.events
            .push(self.now + tool_s, What::Arrive(conversation));
    }

    pub(super) fn end_conversation(&mut self, conversation: usize) {
        self.flights[conversation].conversation.done_s = self.now;
        self.flights[conversation].stage = Stage::Done;
        self.router.close(self.keys[conversation], self.at);
        for engine in 0..self.engines.len() {
            if self.scenario.engines[engine].retention == Retention::Pin {
                self.engines[engine]
                    .books(self.now)
                    .forget(conversation, self.now);
                self.touch(engine);
            }
        }
        if self.scenario.closed_loop.is_some() {
            self.arrive_next();
        }
    }
}
