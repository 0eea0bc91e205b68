//! What the router hears of its workers: their reports, what they evicted; and what it says, written down.

use std::sync::Mutex;

use super::super::events::What;
use super::super::record::EventRow;
use super::World;
use crate::event::{Event, Observer};
use crate::report::WorkerReport;
use crate::units::Blocks;

/// Writes the router's events down.
#[derive(Debug, Default)]
pub(super) struct Scribe(Mutex<Vec<String>>);

impl Observer for Scribe {
    fn on(&self, event: &Event) {
        let mut lines = self.0.lock().expect("nobody panics while holding it");
        lines.push(format!("{event:?}"));
    }
}

impl World<'_> {
    /// What engines evicted is on its way to the router.
    pub(super) fn spread_news(&mut self) {
        for (engine, worker) in self.engines.iter_mut().zip(&self.workers) {
            let lost = engine.take_lost();
            if !lost.is_empty() && self.scenario.router.kv_events {
                let named = |(conversation, blocks): (usize, u32)| {
                    (self.keys[conversation], Blocks::new(u64::from(blocks)))
                };
                let lost = lost.into_iter().map(named).collect();
                self.news.push_back((*worker, lost));
                let heard = self.now + self.scenario.router.report_delay_s;
                self.events.push(heard, What::Heard);
            }
        }
    }

    pub(super) fn hear(&mut self) {
        if let Some((worker, lost)) = self.news.pop_front() {
            self.router.hear_evictions(worker, lost, self.at);
        }
    }

    pub(super) fn report_workers(&mut self) {
        for (engine, id) in self.engines.iter_mut().zip(&self.workers) {
            let pool = engine.books(self.now);
            let (active, capacity) = (pool.active(), pool.capacity());
            let report = WorkerReport {
                running: Some(engine.running()),
                waiting: Some(engine.waiting()),
                kv_usage: Some(f64::from(active) / f64::from(capacity.max(1))),
                ..WorkerReport::default()
            };
            self.router.observe(*id, &report, self.at);
        }
        self.router.tick(self.at);
        let next = self.now + self.scenario.router.report_interval_s;
        self.events.push(next, What::Report);
    }

    pub(super) fn keep_log(&mut self) {
        if let Some(scribe) = &self.scribe {
            let mut lines = scribe.0.lock().expect("nobody panics while holding it");
            let at_s = self.now;
            self.log
                .extend(lines.drain(..).map(|what| EventRow { at_s, what }));
        }
    }
}
