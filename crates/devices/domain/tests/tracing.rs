//! Each operation is a span.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fmt;
use std::io::IoSliceMut;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use longshore_domain::backend::Soft;
use longshore_domain::{Bounce, Direction, Domain, Local, SgLimits};
use longshore_heap::Heap;
use longshore_iov::{Cursor, Dest};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// A span's name, and the values of its fields as text.
type Seen = (&'static str, BTreeMap<&'static str, String>);

/// A subscriber that stores all spans.
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

thread_local!(static LOCAL: OnceCell<Local<'static>> = const { OnceCell::new() });

/// A subscriber that maps by the same handle, within an operation of it.
#[derive(Clone, Default)]
struct Maps {
    keeps: Keeps,
    mapped: Arc<AtomicU64>,
}

impl Maps {
    fn map(&self, id: &Id) {
        let is_grow = self.keeps.spans.lock().unwrap()[&id.into_u64()].0 == "grow";
        if is_grow && self.mapped.fetch_add(1, Ordering::Relaxed) < 100 {
            let buffer = Heap::Memfd.allocate(4096).unwrap();
            LOCAL.with(|local| {
                let local = local.get().unwrap();
                drop(local.map(buffer, Direction::Bidirectional).unwrap());
                let buffer = Heap::Memfd.allocate(8192).unwrap();
                drop(local.domain().map(buffer, Direction::ToDevice).unwrap());
            });
        }
    }
}

impl Subscriber for Maps {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.keeps.enabled(metadata)
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.keeps.new_span(span)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        self.keeps.record(span, values);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, id: &Id) {
        self.map(id);
    }

    fn exit(&self, id: &Id) {
        self.map(id);
    }
}

/// A subscriber may map by the handle, and by the domain, whose operation is reported to it. When it
/// is called, no lock is held and the cache of the handle is not in use. Otherwise it would deadlock,
/// or get slots that are already in use.
#[test]
fn a_subscriber_may_map() {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        let maps = Maps::default();
        let mapped = Arc::clone(&maps.mapped);
        // Subscribers and thread-local values need a static domain.
        let builder = Domain::builder(Soft::new().unwrap()).bounce(Bounce::Always);
        let domain: &'static Domain = Box::leak(Box::new(builder.free_after(None).build()));
        tracing::dispatcher::with_default(&tracing::Dispatch::new(maps), || {
            LOCAL.with(|local| {
                let local = local.get_or_init(|| domain.local());
                for _ in 0..3 {
                    let buffer = Heap::Memfd.allocate(4096).unwrap();
                    local.map(buffer, Direction::Bidirectional).unwrap().unmap().unwrap();
                    domain.shrink(Duration::ZERO).unwrap();
                }
            });
        });
        done.send((mapped.load(Ordering::Relaxed), domain.counters())).unwrap();
    });
    let (mapped, counters) = is_done.recv_timeout(Duration::from_secs(60)).expect("deadlock");
    assert!(mapped > 3);
    assert_eq!(counters.maps, counters.unmaps);
    assert_eq!(counters.pool_bytes, 0);
}

/// A subscriber that panics once.
#[derive(Clone)]
struct Panics {
    keeps: Keeps,
    /// The span and the call in which it panics.
    at: (&'static str, &'static str),
    is_through: Arc<AtomicBool>,
}

impl Panics {
    fn panic(&self, id: &Id, when: &'static str) {
        let name = self.keeps.spans.lock().unwrap()[&id.into_u64()].0;
        if (name, when) == self.at && !self.is_through.swap(true, Ordering::Relaxed) {
            panic!("{name}: {when}");
        }
    }
}

impl Subscriber for Panics {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.keeps.enabled(metadata)
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.keeps.new_span(span)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        self.keeps.record(span, values);
        self.panic(span, "record");
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, id: &Id) {
        self.panic(id, "enter");
    }

    fn exit(&self, id: &Id) {
        self.panic(id, "exit");
    }
}

/// Borrowed bytes are unmapped when the borrow ends, wherever a subscriber panics.
#[test]
fn a_subscriber_that_panics_leaves_no_borrowed_bytes_mapped() {
    for name in ["map", "unmap", "map_sg", "unmap_sg"] {
        for when in ["enter", "record", "exit"] {
            let soft = Soft::new().unwrap();
            let space = soft.space().clone();
            let builder = Domain::builder(soft).bounce(Bounce::Never);
            let domain = builder.free_after(None).build();
            let panics =
                Panics { keeps: Keeps::default(), at: (name, when), is_through: Arc::default() };
            let is_through = Arc::clone(&panics.is_through);
            // Whole pages of these bytes are mapped.
            let mut bytes = vec![0; 400_000];
            let lend = AssertUnwindSafe(|| {
                if name.ends_with("sg") {
                    let mut slices = [IoSliceMut::new(&mut bytes)];
                    let mut cursor = Cursor::<Dest>::own_vec(&mut slices);
                    let limits = SgLimits::new();
                    domain.lend_sg(&mut cursor, 400_000, limits, |_| ()).unwrap();
                } else {
                    domain.lend_mut(&mut bytes, Direction::FromDevice, |_| ()).unwrap();
                }
            });
            let lent = tracing::dispatcher::with_default(&tracing::Dispatch::new(panics), || {
                catch_unwind(lend)
            });
            assert_eq!(lent.is_err(), is_through.load(Ordering::Relaxed), "{name}: {when}");
            assert!(lent.is_err() || (name.ends_with("sg") && when == "record"));
            domain.reclaim().unwrap();
            assert_eq!(space.tables(), 1, "{name}, {when}: the bytes are still mapped");
        }
    }
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
