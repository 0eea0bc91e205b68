//! What may be set about `follow-kv`, each part with its switch.
//!
//! Promises: every option is a finite number in its range, or `inf` where that means never.
//! Leaves to others: what the numbers do (`placement::follow_kv`).

/// When the prompt of a new conversation, or of one whose KV is gone, is computed elsewhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Handoff {
    /// As the roles say: always by a prefiller where there is one; workers that do both compute for others only where they
    /// were made helpers, and then where that is measurably cheaper.
    #[default]
    Roles,
    /// Never: every worker computes the prompts of its own conversations.
    Never,
    /// By any worker that may compute prompts, where that is measurably cheaper. Workers that do both must be able to hand over.
    Cheaper,
    /// Always, by the prefiller that is done first, as `strict` has it.
    Always,
}

impl Handoff {
    const ALL: [Self; 4] = [Self::Roles, Self::Never, Self::Cheaper, Self::Always];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Roles => "roles",
            Self::Never => "never",
            Self::Cheaper => "cheaper",
            Self::Always => "always",
        }
    }
}

/// Who decides how many workers only compute prompts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Roles {
    /// The operator, whom the router advises.
    #[default]
    Advise,
    /// The router: of the workers that do both.
    Auto,
}

impl Roles {
    const ALL: [Self; 2] = [Self::Advise, Self::Auto];

    /// As an operator writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Advise => "advise",
            Self::Auto => "auto",
        }
    }
}

/// The constants of `follow-kv`. Their defaults were chosen in the simulator on two workloads; see docs/design/follow-kv.md.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FollowKvOptions {
    /// Whether first prompts are computed elsewhere.
    pub handoff: Handoff,
    /// A prompt with fewer new tokens is computed where it lives.
    pub handoff_from: f64,
    /// A worker elsewhere must cost less than this share of home, and `handoff_saves_ms` less.
    pub handoff_share: f64,
    /// See `handoff_share`.
    pub handoff_saves_ms: f64,
    /// How much of the work that conversations usually find at its decoder a handoff is expected to find; 0: none.
    pub later: f64,
    /// A home may be fuller than the emptiest by this share of its blocks if it costs that much less; 0: never.
    pub home_fuller: f64,
    /// A worker that holds conversations computes for others only below this share of its blocks.
    pub helper_fill: f64,
    /// Share of a prompt's time that it takes from each turn running there.
    pub stall: f64,
    /// Milliseconds of a handoff, and more for each token until handoffs were observed.
    pub link_ms: f64,
    /// See `link_ms`.
    pub link_ms_per_token: f64,
    /// With so many new tokens, and half of the prompt or more, a turn has lost its KV and is placed afresh; `inf`: never.
    pub afresh_from: f64,
    /// If home is fuller than the other by this share of its blocks...
    pub afresh_fuller: f64,
    /// ... or the other costs less than this share of it.
    pub afresh_share: f64,
    /// A pin moves if the other costs less than this share of home, and `move_saves_ms` less; 0: never.
    pub move_share: f64,
    /// See `move_share`.
    pub move_saves_ms: f64,
    /// Turns that lost their KV wait in line while more than this share of what is computed was computed before, and
    /// home is full; `inf`: never.
    pub thrash: f64,
    /// Home is full: booked blocks and what the turn lacks pass this share. Those who return from the line may fill as much.
    pub thrash_fill: f64,
    /// So many workers that do both, the emptiest and then those whose addresses come first, hold conversations only when no
    /// other has room, and compute for the others.
    pub prefillers: f64,
    /// Who decides about them; with `auto`, `prefillers` is what it begins with.
    pub roles: Roles,
}

impl Default for FollowKvOptions {
    fn default() -> Self {
        Self {
            handoff: Handoff::Roles,
            handoff_from: 512.0,
            handoff_share: 0.65,
            handoff_saves_ms: 20.0,
            later: 1.0,
            home_fuller: 0.1,
            helper_fill: 0.9,
            stall: 0.5,
            link_ms: 5.0,
            // 114,688 bytes at 10 GB/s.
            link_ms_per_token: 0.0115,
            afresh_from: 2_048.0,
            afresh_fuller: 0.1,
            afresh_share: 0.7,
            move_share: 0.0,
            move_saves_ms: 500.0,
            thrash: 0.2,
            thrash_fill: 0.95,
            prefillers: 0.0,
            roles: Roles::Advise,
        }
    }
}

const SHARE: &str = "0 to 1";
const AT_LEAST_ZERO: &str = "0 or more";
const OR_NEVER: &str = "0 or more, or inf for never";
const COUNT: &str = "a whole number of workers";

type Slot = fn(&mut FollowKvOptions) -> &mut f64;

/// Every number with what it takes and where it is.
const NUMBERS: [(&str, &str, Slot); 17] = [
    ("handoff_from", OR_NEVER, |of| &mut of.handoff_from),
    ("handoff_share", SHARE, |of| &mut of.handoff_share),
    ("handoff_saves_ms", AT_LEAST_ZERO, |of| {
        &mut of.handoff_saves_ms
    }),
    ("later", AT_LEAST_ZERO, |of| &mut of.later),
    ("home_fuller", SHARE, |of| &mut of.home_fuller),
    ("helper_fill", SHARE, |of| &mut of.helper_fill),
    ("stall", AT_LEAST_ZERO, |of| &mut of.stall),
    ("link_ms", AT_LEAST_ZERO, |of| &mut of.link_ms),
    ("link_ms_per_token", OR_NEVER, |of| {
        &mut of.link_ms_per_token
    }),
    ("afresh_from", OR_NEVER, |of| &mut of.afresh_from),
    ("afresh_fuller", SHARE, |of| &mut of.afresh_fuller),
    ("afresh_share", SHARE, |of| &mut of.afresh_share),
    ("move_share", SHARE, |of| &mut of.move_share),
    ("move_saves_ms", AT_LEAST_ZERO, |of| &mut of.move_saves_ms),
    ("thrash", OR_NEVER, |of| &mut of.thrash),
    ("thrash_fill", SHARE, |of| &mut of.thrash_fill),
    ("prefillers", COUNT, |of| &mut of.prefillers),
];

/// The options, each with what it takes.
pub(super) const OPTIONS: &[(&str, &str)] = &{
    let mut options = [("handoff", "roles, never, cheaper or always"); NUMBERS.len() + 2];
    let mut at = 0;
    while at < NUMBERS.len() {
        options[at + 1] = (NUMBERS[at].0, NUMBERS[at].1);
        at += 1;
    }
    options[at + 1] = ("roles", "advise or auto");
    options
};

impl FollowKvOptions {
    /// `None` if the option does not take this value.
    pub(super) fn set(&mut self, option: &str, value: &str) -> Option<()> {
        if option == "handoff" {
            self.handoff = Handoff::ALL
                .into_iter()
                .find(|choice| choice.as_str() == value)?;
            return Some(());
        }
        if option == "roles" {
            self.roles = Roles::ALL
                .into_iter()
                .find(|choice| choice.as_str() == value)?;
            return Some(());
        }
        let (_, accepted, slot) = NUMBERS.iter().find(|(key, ..)| *key == option)?;
        let number: f64 = value.parse().ok()?;
        let fits = match *accepted {
            SHARE => (0.0..=1.0).contains(&number),
            OR_NEVER => number >= 0.0,
            COUNT => number.is_finite() && number >= 0.0 && number.fract() == 0.0,
            _ => number.is_finite() && number >= 0.0,
        };
        fits.then(|| *slot(self) = number)
    }

    /// What is not as usual, as options.
    pub(super) fn unusual(&self) -> Vec<String> {
        let (mut own, mut usual) = (*self, Self::default());
        let mut parts = Vec::new();
        if own.handoff != usual.handoff {
            parts.push(format!("handoff={}", own.handoff.as_str()));
        }
        for (key, _, slot) in NUMBERS {
            let value = *slot(&mut own);
            if value.to_bits() != slot(&mut usual).to_bits() {
                parts.push(format!("{key}={value}"));
            }
        }
        if own.roles != usual.roles {
            parts.push(format!("roles={}", own.roles.as_str()));
        }
        parts
    }
}
