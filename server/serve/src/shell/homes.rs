//! Which processor the home core gets, where several members share a machine.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Members that may share one processor before it is left to the kernel how they get along.
const HOMES_PER_PROCESSOR_MAX: usize = 16;

/// A processor that others on this machine are told is a home. It is free again when this is dropped, or the process ends
/// in whatever way.
#[derive(Debug)]
pub struct Claim {
    /// The processor.
    pub processor: usize,
    /// Bound to a name that says so; none where the kernel has no such names.
    _name: Option<UnixDatagram>,
}

/// Takes the first of `processors`, unless another member of this machine has made it its home and there is one that
/// fewer have. One write at a time waits for the home of each member of a cluster in turn; where they all lie on the
/// processor that takes the disk's interrupts, they wait for each other while another processor idles.
///
/// Members find each other by names of sockets, which a network namespace holds: those of another one are not seen.
///
/// # Panics
/// Without a processor.
pub fn claim(processors: &[usize]) -> Claim {
    let first = *processors.first().expect("a server runs on some processor");
    for sharing in 0..HOMES_PER_PROCESSOR_MAX {
        for processor in processors {
            match bind(*processor, sharing) {
                Ok(name) => return Claim { processor: *processor, _name: Some(name) },
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(_) => return Claim { processor: first, _name: None },
            }
        }
    }
    Claim { processor: first, _name: None }
}

fn bind(processor: usize, sharing: usize) -> io::Result<UnixDatagram> {
    let name = SocketAddr::from_abstract_name(format!("garboard/home/{processor}/{sharing}"))?;
    UnixDatagram::bind_addr(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No machine has processors of these numbers, so nobody else claims them.
    const FIRST: usize = 100_001;
    const SECOND: usize = 100_002;

    #[test]
    fn members_spread_over_the_processors_and_the_first_is_taken_again_when_it_is_free() {
        let processors = [FIRST, SECOND];
        let one = claim(&processors);
        let two = claim(&processors);
        let three = claim(&processors);
        assert_eq!([one.processor, two.processor, three.processor], [FIRST, SECOND, FIRST]);
        drop(one);
        assert_eq!(claim(&processors).processor, FIRST);
    }
}
