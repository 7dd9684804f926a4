//! The alarms that are raised, and what they refuse.
//!
//! | command | NOSPACE | CORRUPT |
//! |---|---|---|
//! | put | refused | refused |
//! | delete range | | refused |
//! | txn with puts | refused | refused |
//! | txn with deletions or nested transactions | | refused |
//! | txn with ranges alone | | |
//! | compact | | refused |
//! | lease grant | refused | refused |
//! | lease revoke | | refused |
//! | alarms, members | | |
//!
//! Alarms are replicated, so that every member refuses alike. A NOSPACE alarm stays until it is disarmed.

use std::collections::BTreeSet;

use crate::error::Error;
use crate::quota;
use crate::read::txn::is_read_only;
use crate::request::{Alarm, AlarmKind, Command};

/// The alarms that are raised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alarms {
    raised: BTreeSet<Alarm>,
}

impl Alarms {
    /// What the system tree holds.
    pub fn restore(raised: impl IntoIterator<Item = Alarm>) -> Alarms {
        Alarms { raised: raised.into_iter().collect() }
    }

    /// All alarms, in order of member and kind.
    pub fn list(&self) -> Vec<Alarm> {
        self.raised.iter().copied().collect()
    }

    /// Whether any member has raised this kind.
    pub fn is_raised(&self, kind: AlarmKind) -> bool {
        self.raised.iter().any(|alarm| alarm.kind == kind)
    }

    /// Raises an alarm; false when it was raised already or is of no kind.
    pub(crate) fn activate(&mut self, alarm: Alarm) -> bool {
        alarm.kind != AlarmKind::None && self.raised.insert(alarm)
    }

    /// Takes an alarm back; false when it was not raised.
    pub(crate) fn deactivate(&mut self, alarm: Alarm) -> bool {
        self.raised.remove(&alarm)
    }

    /// Whether the alarms let a command pass.
    pub fn check(&self, command: &Command) -> Result<(), Error> {
        if self.raised.is_empty() {
            return Ok(());
        }
        if self.is_raised(AlarmKind::Corrupt) && changes_data(command) {
            return Err(Error::Corrupt);
        }
        if self.is_raised(AlarmKind::NoSpace) && quota::cost(command) > 0 {
            return Err(Error::NoSpace);
        }
        Ok(())
    }
}

fn changes_data(command: &Command) -> bool {
    match command {
        Command::Txn(txn) => !is_read_only(txn, true),
        Command::Put(_)
        | Command::DeleteRange(_)
        | Command::Compact { .. }
        | Command::LeaseGrant { .. }
        | Command::LeaseRevoke { .. } => true,
        Command::AlarmActivate(_) | Command::AlarmDeactivate(_) | Command::Member(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::request::{DeleteRange, KeyRange, Operation, Put, Txn};

    const MEMBER: u64 = 7;

    fn put() -> Put {
        let key = Bytes::from_static(b"key");
        Put { key, value: Bytes::new(), lease: 0, prev_kv: false, ignore_value: false, ignore_lease: false }
    }

    fn delete() -> DeleteRange {
        DeleteRange { keys: KeyRange::All, prev_kv: false }
    }

    fn txn(operation: Operation) -> Command {
        Command::Txn(Txn { compares: vec![], success: vec![], failure: vec![operation] })
    }

    #[test]
    fn alarms_refuse_what_the_table_says() {
        let ok = Ok(());
        let full = Err(Error::NoSpace);
        let corrupt = Err(Error::Corrupt);
        let alarm = Alarm { member_id: MEMBER, kind: AlarmKind::NoSpace };
        let nested = |operations| txn(Operation::Txn(Txn { success: operations, ..Txn::default() }));
        let table = [
            (Command::Put(put()), full, corrupt),
            (Command::DeleteRange(delete()), ok, corrupt),
            (txn(Operation::Put(put())), full, corrupt),
            (txn(Operation::DeleteRange(delete())), ok, corrupt),
            (nested(vec![]), ok, corrupt),
            (nested(vec![Operation::Put(put())]), full, corrupt),
            (Command::Txn(Txn::default()), ok, ok),
            (Command::Compact { revision: 1, physical: false }, ok, corrupt),
            (Command::LeaseGrant { id: 1, ttl_seconds: 1 }, full, corrupt),
            (Command::LeaseRevoke { id: 1 }, ok, corrupt),
            (Command::AlarmActivate(alarm), ok, ok),
            (Command::AlarmDeactivate(alarm), ok, ok),
        ];
        let raised = |kind| Alarms::restore([Alarm { member_id: MEMBER, kind }]);
        for (command, when_full, when_corrupt) in table {
            assert_eq!(Alarms::default().check(&command), ok, "no alarm: {command:?}");
            assert_eq!(raised(AlarmKind::NoSpace).check(&command), when_full, "NOSPACE: {command:?}");
            assert_eq!(raised(AlarmKind::Corrupt).check(&command), when_corrupt, "CORRUPT: {command:?}");
        }
    }

    #[test]
    fn an_alarm_is_raised_once_and_taken_back_once() {
        let mut alarms = Alarms::default();
        let alarm = Alarm { member_id: MEMBER, kind: AlarmKind::Corrupt };
        assert!(alarms.activate(alarm));
        assert!(!alarms.activate(alarm));
        assert!(!alarms.activate(Alarm { kind: AlarmKind::None, ..alarm }));
        assert!(!alarms.deactivate(Alarm { member_id: 8, ..alarm }));
        assert!(alarms.deactivate(alarm));
        assert!(!alarms.deactivate(alarm));
    }
}
