//! Each operation is a span, for whoever listens.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longshore_domain::backend::Soft;
use longshore_domain::{Bounce, Direction, Domain};
use longshore_heap::Heap;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// A span's name, and its fields' values as they are printed.
type Seen = (&'static str, BTreeMap<&'static str, String>);

/// Keeps every span.
#[derive(Clone, Default)]
struct Keeps {
    spans: Arc<Mutex<BTreeMap<u64, Seen>>>,
    last: Arc<AtomicU64>,
}

struct Fields<'f>(&'f mut BTreeMap<&'static str, String>);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl Subscriber for Keeps {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "longshore_domain"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let mut fields = BTreeMap::new();
        span.record(&mut Fields(&mut fields));
        self.spans.lock().unwrap().insert(id, (span.metadata().name(), fields));
        Id::from_u64(id)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut spans = self.spans.lock().unwrap();
        values.record(&mut Fields(&mut spans.get_mut(&span.into_u64()).unwrap().1));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn each_operation_is_a_span() {
    let keeps = Keeps::default();
    let spans = Arc::clone(&keeps.spans);
    let iova = tracing::subscriber::with_default(keeps, || {
        let builder = Domain::builder(Soft::new().unwrap()).bounce(Bounce::Always);
        let domain = builder.free_after(None).build();
        let local = domain.local();
        let buffer = Heap::Memfd.allocate(4096).unwrap();
        let mut mapping = local.map(buffer, Direction::Bidirectional).unwrap();
        mapping.sync_for_cpu(0..16).unwrap();
        mapping.sync_for_device(0..16).unwrap();
        let iova = mapping.iova();
        mapping.complete(100).unwrap();
        local.batch::<longshore_heap::Buffer>().flush(drop).unwrap();
        domain.shrink(Duration::ZERO).unwrap();
        iova
    });
    let spans = spans.lock().unwrap();
    let names: Vec<_> = spans.values().map(|(name, _)| *name).collect();
    assert_eq!(
        names,
        ["map", "grow", "sync_for_cpu", "sync_for_device", "unmap", "flush", "shrink"]
    );
    let field = |nth: usize, name: &str| spans.values().nth(nth).unwrap().1[name].clone();
    assert_eq!(field(0, "direction"), "Bidirectional");
    assert_eq!(field(0, "len_bytes"), "4096");
    assert_eq!(field(0, "iova"), iova.raw().to_string());
    assert_eq!(field(0, "is_bounced"), "1");
    assert_eq!(field(1, "slot_bytes"), "4096");
    assert_eq!(field(2, "bytes"), "0..16");
    assert_eq!((field(4, "written_bytes"), field(4, "len_bytes")), ("100".into(), "4096".into()));
    assert_eq!(field(5, "mappings"), "0");
}
