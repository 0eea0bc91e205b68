//! What arrives: conversations with their turns, in columns.
//!
//! Promises: a `Workload` that exists is valid, so no length is looked at twice.
//! Leaves to others: where it comes from (Python loaders and generators).

/// A workload that cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{column}[{index}] = {value}: {accepted}")]
pub struct WorkloadError {
    /// The column.
    pub column: &'static str,
    /// The place in it.
    pub index: usize,
    /// What was there.
    pub value: String,
    /// What is accepted.
    pub accepted: String,
}

/// A workload as columns: the first four have one entry for each conversation, the others one for each
/// turn, conversation after conversation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WorkloadColumns {
    /// When the first turn is sent, seconds.
    pub arrival_s: Vec<f64>,
    /// Turns, at least one.
    pub turns: Vec<u32>,
    /// Which shared prefix heads the first prompt; -1: none. Empty: nobody has one.
    pub prefix_id: Vec<i64>,
    /// How long that is.
    pub prefix_tokens: Vec<u32>,
    /// New tokens of the prompt.
    pub append: Vec<u32>,
    /// Tokens generated, at least one.
    pub output: Vec<u32>,
    /// Between the last token of the turn before and this turn, seconds; of the first turn it is ignored.
    pub gap_s: Vec<f64>,
    /// The turn ends in an answer for the user. Empty: each last turn.
    pub visible: Vec<bool>,
    /// Tokens of the earlier context that this prompt begins with; -1: all of it. Empty: all -1.
    pub reuse: Vec<i64>,
    /// The turn is declared mispredicted (see the scenario's `flip`). Empty: none.
    pub flip: Vec<bool>,
}

impl WorkloadColumns {
    /// One conversation that arrives at once, its turns as (append, output), without tool time.
    #[must_use]
    pub fn single(turns: &[(u32, u32)]) -> Self {
        Self {
            arrival_s: vec![0.0],
            turns: vec![turns.len() as u32],
            append: turns.iter().map(|(append, _)| *append).collect(),
            output: turns.iter().map(|(_, output)| *output).collect(),
            gap_s: vec![0.0; turns.len()],
            ..Self::default()
        }
    }
}

/// One turn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct TurnSpec {
    pub(super) prompt: u32,
    pub(super) output: u32,
    pub(super) gap_s: f64,
    pub(super) visible: bool,
    /// Tokens of the prompt that the context before had already.
    pub(super) reuse: u32,
    /// The context before is longer than that: what lies behind is void.
    pub(super) resets: bool,
    pub(super) flip: bool,
}

/// One conversation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ConversationSpec {
    pub(super) arrival_s: f64,
    pub(super) first: usize,
    pub(super) turns: usize,
    pub(super) prefix: Option<(u32, u32)>,
    pub(super) peak: u32,
}

/// A checked workload.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    pub(super) conversations: Vec<ConversationSpec>,
    pub(super) turns: Vec<TurnSpec>,
    pub(super) prefixes: usize,
}

/// The longest context that can be simulated.
const LONGEST: u64 = 1 << 30;

fn wrong(
    column: &'static str,
    index: usize,
    value: impl std::fmt::Display,
    accepted: impl Into<String>,
) -> WorkloadError {
    WorkloadError {
        column,
        index,
        value: format!("{value}"),
        accepted: accepted.into(),
    }
}

fn length(column: &'static str, found: usize, expected: usize) -> Result<(), WorkloadError> {
    if found == expected {
        return Ok(());
    }
    Err(wrong(
        column,
        found,
        "the end",
        format!("expected {expected} entries"),
    ))
}

impl Workload {
    /// Checks the columns.
    ///
    /// # Errors
    /// Names the column, the place and what is accepted.
    pub fn new(columns: &WorkloadColumns) -> Result<Self, WorkloadError> {
        let conversations = columns.arrival_s.len();
        length("turns", columns.turns.len(), conversations)?;
        let all: usize = columns.turns.iter().map(|turns| *turns as usize).sum();
        for (name, found) in [
            ("append", columns.append.len()),
            ("output", columns.output.len()),
            ("gap_s", columns.gap_s.len()),
        ] {
            length(name, found, all)?;
        }
        for (name, found, expected) in [
            ("prefix_id", columns.prefix_id.len(), conversations),
            (
                "prefix_tokens",
                columns.prefix_tokens.len(),
                columns.prefix_id.len(),
            ),
            ("visible", columns.visible.len(), all),
            ("reuse", columns.reuse.len(), all),
            ("flip", columns.flip.len(), all),
        ] {
            if found > 0 || name == "prefix_tokens" {
                length(name, found, expected)?;
            }
        }
        let mut made = Self {
            conversations: Vec::with_capacity(conversations),
            turns: Vec::with_capacity(all),
            prefixes: 0,
        };
        for at in 0..conversations {
            made.add(at, columns)?;
        }
        Ok(made)
    }

    fn add(&mut self, at: usize, columns: &WorkloadColumns) -> Result<(), WorkloadError> {
        let (arrival_s, turns) = (columns.arrival_s[at], columns.turns[at] as usize);
        if !(arrival_s.is_finite() && arrival_s >= 0.0) {
            return Err(wrong("arrival_s", at, arrival_s, "finite, at least 0"));
        }
        if turns == 0 || turns > usize::from(u16::MAX) {
            return Err(wrong("turns", at, turns, "1 to 65535"));
        }
        let (first, mut context, mut peak) = (self.turns.len(), 0_u64, 0);
        for turn in first..first + turns {
            let last = turn + 1 == first + turns;
            context = self.add_turn(turn, turn == first, last, context, columns)?;
            peak = peak.max(context);
        }
        let prefix = match columns.prefix_id.get(at) {
            None | Some(-1) => None,
            Some(id) => {
                let tokens = columns.prefix_tokens[at];
                let known = u32::try_from(*id).ok().filter(|id| *id < 1 << 20);
                let Some(id) = known else {
                    return Err(wrong("prefix_id", at, id, "-1 to 1048575"));
                };
                if tokens >= self.turns[first].prompt {
                    let accepted = "less than the first prompt";
                    return Err(wrong("prefix_tokens", at, tokens, accepted));
                }
                self.prefixes = self.prefixes.max(id as usize + 1);
                Some((id, tokens))
            }
        };
        self.conversations.push(ConversationSpec {
            arrival_s,
            first,
            turns,
            prefix,
            peak: peak as u32,
        });
        Ok(())
    }

    fn add_turn(
        &mut self,
        at: usize,
        first: bool,
        last: bool,
        context: u64,
        columns: &WorkloadColumns,
    ) -> Result<u64, WorkloadError> {
        let (append, output, gap_s) = (columns.append[at], columns.output[at], columns.gap_s[at]);
        if output == 0 {
            return Err(wrong("output", at, output, "at least 1"));
        }
        let known = gap_s.is_finite() && gap_s >= 0.0;
        if !(first || known) {
            return Err(wrong("gap_s", at, gap_s, "finite, at least 0"));
        }
        let reuse = match columns.reuse.get(at) {
            None | Some(-1) => context,
            Some(reuse) => match u64::try_from(*reuse) {
                Ok(reuse) if reuse <= context => reuse,
                _ => {
                    let accepted = format!("-1, or 0 to {context}, the context before");
                    return Err(wrong("reuse", at, reuse, accepted));
                }
            },
        };
        let prompt = reuse + u64::from(append);
        if append == 0 {
            return Err(wrong("append", at, append, "at least 1"));
        }
        let after = prompt + u64::from(output);
        if after > LONGEST {
            return Err(wrong(
                "append",
                at,
                append,
                "a context of at most 2^30 tokens",
            ));
        }
        self.turns.push(TurnSpec {
            prompt: prompt as u32,
            output,
            gap_s: if first { 0.0 } else { gap_s },
            visible: columns.visible.get(at).copied().unwrap_or(last),
            reuse: reuse as u32,
            resets: reuse < context,
            flip: columns.flip.get(at).copied().unwrap_or(false),
        });
        Ok(after)
    }

    /// Conversations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.conversations.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.conversations.is_empty()
    }

    /// Turns of all conversations.
    #[must_use]
    pub fn turns(&self) -> usize {
        self.turns.len()
    }
}
