//! A layer that turns finished spans into records for the exporter.
//!
//! Fields become attributes, except those that describe the span itself: `otel.name`, `otel.kind`, `otel.status` and
//! `traceparent` (the caller's own trace, W3C Trace Context).

use std::time::SystemTime;

use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::otlp::{Attribute, Finished, Parent};

pub struct Spans {
    to: Sender<Finished>,
}

impl Spans {
    pub fn new(to: Sender<Finished>) -> Spans {
        Spans { to }
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let above = span.parent().and_then(|parent| {
            let extensions = parent.extensions();
            extensions.get::<Finished>().map(|parent| Parent { trace: parent.trace, span: parent.span })
        });
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let parent = above.or(fields.parent);
        let record = Finished {
            trace: parent.map_or_else(random_bytes, |parent| parent.trace),
            span: random_bytes(),
            parent: parent.map(|parent| parent.span),
            name: fields.name.unwrap_or_else(|| span.name().to_owned()),
            kind: fields.kind,
            failed: fields.failed,
            began: SystemTime::now(),
            ended: SystemTime::now(),
            attributes: fields.attributes,
        };
        span.extensions_mut().insert(record);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        values.record(&mut fields);
        let mut extensions = span.extensions_mut();
        let Some(record) = extensions.get_mut::<Finished>() else { return };
        if let Some(name) = fields.name {
            record.name = name;
        }
        record.failed |= fields.failed;
        record.attributes.extend(fields.attributes);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(mut record) = span.extensions_mut().remove::<Finished>() else { return };
        record.ended = SystemTime::now();
        match self.to.try_send(record) {
            Ok(()) => {}
            // A slow collector costs traces, never requests.
            Err(TrySendError::Full(_) | TrySendError::Closed(_)) => super::export::note_loss(),
        }
    }
}

fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // All zeros means no id; in practice the kernel never returns that.
    if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).is_err() || bytes == [0; N] {
        bytes[0] = 1;
    }
    bytes
}

#[derive(Default)]
struct Fields {
    name: Option<String>,
    kind: super::otlp::Kind,
    failed: bool,
    parent: Option<Parent>,
    attributes: Vec<(&'static str, Attribute)>,
}

impl Fields {
    fn text(&mut self, field: &Field, value: &str) {
        match field.name() {
            "otel.name" => self.name = Some(value.to_owned()),
            "otel.kind" => self.kind = super::otlp::Kind::of(value),
            "otel.status" => self.failed = value == "error",
            "traceparent" => self.parent = Parent::parse(value),
            name => self.attributes.push((name, Attribute::Text(value.to_owned()))),
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.attributes.push((field.name(), Attribute::Number(value)));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.attributes.push((field.name(), Attribute::Number(i64::try_from(value).unwrap_or(i64::MAX))));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.attributes.push((field.name(), Attribute::Switch(value)));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.text(field, &format!("{value:?}"));
    }
}
