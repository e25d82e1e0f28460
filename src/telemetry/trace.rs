//! Distributed tracing with W3C Trace Context.
//!
//! A node that exports nothing makes no span here, and asks a single flag to know it. A node that
//! exports makes spans for the sampled requests only. Their contexts travel with hints, jobs and
//! turns of webhooks.
//!
//! A span names an operation. It has no id of a user, no address, no payload and no secret.
//!
//! Why: ADR 88.

use std::{
    fmt,
    str::FromStr,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
};

use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The target of every span that is exported. No other span is.
pub(super) const TARGET: &str = "blindpipe::trace";

/// The sampled requests of a million; [`OFF`] if nothing is exported.
static SAMPLES_PER_MILLION: AtomicU32 = AtomicU32::new(OFF);
const OFF: u32 = u32::MAX;
/// Whether a caller's `traceparent` is a parent.
static TRUSTS_CALLERS: AtomicBool = AtomicBool::new(false);
const MILLION: f64 = 1_000_000.0;

/// A trace and a span in it, which is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    trace: u128,
    span: u64,
}

/// The `traceparent` of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    context: TraceContext,
    is_sampled: bool,
}

/// The relation of a caller's `traceparent` to the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallerTrace {
    /// The parent of its span. If the caller has sampled it, so does the node.
    Parent(TraceParent),
    /// A trace that its span links to.
    Link(TraceParent),
}

impl fmt::Display for TraceContext {
    /// As `traceparent`.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "00-{:032x}-{:016x}-01", self.trace, self.span)
    }
}

/// The error of a text that is no `traceparent`.
#[derive(Debug)]
pub struct NotTraceParent;

impl FromStr for TraceParent {
    type Err = NotTraceParent;

    fn from_str(text: &str) -> Result<Self, NotTraceParent> {
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let mut parts = text.splitn(5, '-');
        let mut part = |chars: usize| {
            let part = parts.next().ok_or(NotTraceParent)?;
            let is_good = part.len() == chars && part.bytes().all(is_hex);
            is_good.then_some(part).ok_or(NotTraceParent)
        };
        let [version, trace, span, flags] = [part(2)?, part(32)?, part(16)?, part(2)?];
        // Later versions may have more parts; this one has not.
        let has_more = parts.next().is_some();
        if version == "ff" || (version == "00" && has_more) {
            return Err(NotTraceParent);
        }
        let number = |part| u128::from_str_radix(part, 16).map_err(|_| NotTraceParent);
        let context = TraceContext {
            trace: number(trace)?,
            span: u64::try_from(number(span)?).map_err(|_| NotTraceParent)?,
        };
        let is_known = context.trace != 0 && context.span != 0;
        let is_sampled = number(flags)? & 1 == 1;
        is_known
            .then_some(TraceParent {
                context,
                is_sampled,
            })
            .ok_or(NotTraceParent)
    }
}

impl FromStr for TraceContext {
    type Err = NotTraceParent;

    /// Reads what [`Display`](fmt::Display) has written on any node.
    fn from_str(text: &str) -> Result<Self, NotTraceParent> {
        let parent: TraceParent = text.parse()?;
        parent
            .is_sampled
            .then_some(parent.context)
            .ok_or(NotTraceParent)
    }
}

impl TraceContext {
    /// The id of the trace, in hexadecimal.
    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.trace)
    }

    /// The context of a span; none unless it is exported.
    pub fn of(span: &Span) -> Option<Self> {
        if span.is_none() || is_off() {
            return None;
        }
        let context = span.context();
        let span = context.span();
        let known = span.span_context();
        (known.is_valid() && known.is_sampled()).then(|| TraceContext {
            trace: u128::from_be_bytes(known.trace_id().to_bytes()),
            span: u64::from_be_bytes(known.span_id().to_bytes()),
        })
    }

    fn as_remote(self) -> SpanContext {
        let (trace, span) = (TraceId::from(self.trace), SpanId::from(self.span));
        SpanContext::new(
            trace,
            span,
            TraceFlags::SAMPLED,
            true,
            TraceState::default(),
        )
    }
}

/// The attributes of a request in its span.
pub struct RequestNames<'a> {
    pub method: &'a str,
    /// The template of the path, without ids.
    pub route: &'a str,
    /// The id that its log lines have.
    pub request_id: &'a str,
}

/// Begins to make spans, for this part of the requests. `trusts_callers` says what their
/// `traceparent` is.
pub(super) fn begin(ratio: SampleRatio, trusts_callers: bool) {
    TRUSTS_CALLERS.store(trusts_callers, Ordering::Relaxed);
    SAMPLES_PER_MILLION.store(ratio.0, Ordering::Relaxed);
}

/// Whether nothing is exported.
pub fn is_off() -> bool {
    SAMPLES_PER_MILLION.load(Ordering::Relaxed) == OFF
}

/// Reads a caller's `traceparent`.
pub fn of_caller(traceparent: &str) -> Option<CallerTrace> {
    let parent = traceparent.parse().ok()?;
    Some(if TRUSTS_CALLERS.load(Ordering::Relaxed) {
        CallerTrace::Parent(parent)
    } else {
        CallerTrace::Link(parent)
    })
}

/// Whether a request begins a trace. `chance` is a random number in `[0, 1)`.
pub fn is_sampled(caller: Option<CallerTrace>, chance: impl FnOnce() -> f64) -> bool {
    let samples = SAMPLES_PER_MILLION.load(Ordering::Relaxed);
    if samples == OFF {
        return false;
    }
    let is_asked = matches!(caller, Some(CallerTrace::Parent(parent)) if parent.is_sampled);
    is_asked || chance() * MILLION < f64::from(samples)
}

/// The span of a sampled request.
pub fn of_request(names: &RequestNames<'_>, caller: Option<CallerTrace>) -> Span {
    let RequestNames {
        method,
        route,
        request_id,
    } = names;
    let span = tracing::info_span!(
        target: TARGET,
        "request",
        otel.name = %format_args!("{method} {route}"),
        otel.kind = "server",
        otel.status_code = tracing::field::Empty,
        http.request.method = method,
        http.route = route,
        http.response.status_code = tracing::field::Empty,
        request_id,
        trace_id = tracing::field::Empty,
    );
    match caller {
        Some(CallerTrace::Parent(parent)) => adopt(&span, parent.context),
        Some(CallerTrace::Link(linked)) => span.add_link(linked.context.as_remote()),
        None => {}
    }
    named(span)
}

/// The span of a frame that writes; none unless it is sampled.
pub fn of_frame(name: &'static str, chance: impl FnOnce() -> f64) -> Span {
    if !is_sampled(None, chance) {
        return Span::none();
    }
    named(tracing::info_span!(
        target: TARGET,
        "frame",
        otel.name = name,
        otel.kind = "server",
        trace_id = tracing::field::Empty,
    ))
}

/// The span of a part of the work at hand; none unless that is sampled. `kind` is `internal` or
/// `client`.
pub fn of_part(name: &'static str, kind: &'static str) -> Span {
    match current() {
        Some(_) => named(tracing::info_span!(
            target: TARGET,
            "part",
            otel.name = name,
            otel.kind = kind,
            outcome = tracing::field::Empty,
            trace_id = tracing::field::Empty,
        )),
        None => Span::none(),
    }
}

/// The span of work that a hint, a job or a turn asks for; none unless its trace is sampled.
/// `kind` is `consumer` or `client`.
pub fn of_follower(
    noun: &'static str,
    verb: &'static str,
    kind: &'static str,
    parent: Option<TraceContext>,
) -> Span {
    let Some(parent) = parent.filter(|_| !is_off()) else {
        return Span::none();
    };
    let span = tracing::info_span!(
        target: TARGET,
        parent: None,
        "follower",
        otel.name = %format_args!("{noun} {verb}"),
        otel.kind = kind,
        outcome = tracing::field::Empty,
        trace_id = tracing::field::Empty,
    );
    adopt(&span, parent);
    named(span)
}

/// The context of the work at hand; none unless it is sampled.
pub fn current() -> Option<TraceContext> {
    if is_off() {
        return None;
    }
    TraceContext::of(&Span::current())
}

fn adopt(span: &Span, parent: TraceContext) {
    let parent = opentelemetry::Context::new().with_remote_span_context(parent.as_remote());
    span.set_parent(parent).ok();
}

/// Gives a new span's id of the trace to the log lines within it.
fn named(span: Span) -> Span {
    if let Some(context) = TraceContext::of(&span) {
        span.record("trace_id", context.trace_id());
    }
    span
}

/// The part of the requests that begin a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleRatio(u32);

impl SampleRatio {
    /// Reads a number from 0 to 1.
    pub fn parse(text: &str) -> Result<Self, String> {
        let ratio: f64 = text.parse().map_err(|_| "must be a number from 0 to 1")?;
        if !(0.0..=1.0).contains(&ratio) {
            return Err("must be a number from 0 to 1".into());
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 0 to a million"
        )]
        Ok(SampleRatio((ratio * MILLION).round() as u32))
    }

    /// Checks the setting.
    pub fn check(text: &str) -> Result<(), String> {
        Self::parse(text).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_context_is_read_as_the_standard_says() {
        let parent: TraceParent = KNOWN.parse().expect("a parent");
        assert!(parent.is_sampled);
        assert_eq!(parent.context.to_string(), KNOWN);
        assert_eq!(
            parent.context.trace_id(),
            "0af7651916cd43dd8448eb211c80319c"
        );
        let newer = "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03-more";
        assert_eq!(newer.parse::<TraceParent>().expect("a parent"), parent);
        let unsampled = KNOWN.replace("-01", "-00");
        assert!(
            !unsampled
                .parse::<TraceParent>()
                .expect("a parent")
                .is_sampled
        );
        assert!(unsampled.parse::<TraceContext>().is_err());
        for text in [
            "",
            "00",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert!(text.parse::<TraceParent>().is_err(), "{text}");
        }
    }

    #[test]
    fn without_an_export_there_are_no_spans() {
        let context: TraceContext = KNOWN.parse().expect("a context");
        let caller = CallerTrace::Parent(KNOWN.parse().expect("a parent"));
        assert!(!is_sampled(Some(caller), || 0.0));
        assert!(of_frame("message.send", || 0.0).is_none());
        assert!(of_follower("job", "mail", "consumer", Some(context)).is_none());
        assert_eq!(current(), None);
    }

    #[test]
    fn a_ratio_is_a_part_of_one() {
        assert_eq!(SampleRatio::parse("0.01"), Ok(SampleRatio(10_000)));
        assert_eq!(SampleRatio::parse("1"), Ok(SampleRatio(1_000_000)));
        for text in ["", "-0.1", "1.5", "NaN", "1%"] {
            assert!(SampleRatio::parse(text).is_err(), "{text}");
        }
    }
}
