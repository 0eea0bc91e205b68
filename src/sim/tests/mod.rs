//! Verification before any claim: closed forms, queueing theory, conservation, and relations between runs.

mod closed_form;
mod support;
