//! The conformance suite on the backend of this process.

mod suite;

use longshore_access::Session;
use longshore_domain::{Builder, Domain, backend::Soft};
use longshore_mem::Iova;
use suite::{Device, Rig};

struct InProcess;

impl Rig for InProcess {
    type Device = Model;

    fn domain(&self) -> (Builder, Model) {
        let soft = Soft::new().unwrap();
        let model = Model(soft.space().session());
        (Domain::builder(soft), model)
    }
}

/// The same rig with a checker, which panics on misuse.
struct Watched;

impl Rig for Watched {
    type Device = Model;

    fn domain(&self) -> (Builder, Model) {
        let (builder, model) = InProcess.domain();
        (builder.on_misuse(|misuse| panic!("{misuse}")), model)
    }
}

/// A device model.
struct Model(Session);

impl Device for Model {
    fn read(&self, iova: Iova, into: &mut [u8]) -> bool {
        self.0.read(iova, into).is_ok()
    }

    fn write(&self, iova: Iova, from: &[u8]) -> bool {
        self.0.write(iova, from).is_ok()
    }
}

#[test]
fn soft() {
    for (name, case) in suite::cases() {
        println!("soft: {name}");
        case(&InProcess);
    }
}

#[test]
fn soft_and_watched() {
    for (name, case) in suite::cases() {
        println!("soft, watched: {name}");
        case(&Watched);
    }
}

#[test]
fn only_the_domain_maps_in_its_space() {
    let soft = Soft::new().unwrap();
    let space = soft.space().clone();
    let _domain = Domain::builder(soft).build();
    let refused = space.unmap(Iova::new(0x1000), 0x1000).unwrap_err();
    assert!(matches!(refused, longshore_access::Error::RawOnly), "{refused}");
}
