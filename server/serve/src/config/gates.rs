//! etcd's feature gates: `--feature-gates=Name=true,Other=false`.

use super::flags::{Source, Values, boolean};
use super::{ConfigError, Warning};

/// What the gates turn on here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gates {
    /// Before a member serves, its state is compared with those of others.
    pub(super) initial_corrupt_check: bool,
    /// A leader compares the hashes of compactions.
    pub(super) compact_hash_check: bool,
}

/// The gates of etcd 3.7 that have nothing to do here, and whether they are on by default.
const WITHOUT_EFFECT: &[(&str, bool)] = &[
    ("AllBeta", false),
    ("FastLeaseKeepAlive", true),
    ("LeaseCheckpoint", false),
    ("LeaseCheckpointPersist", false),
    ("PriorityRequest", false),
    ("SetMemberLocalAddr", false),
    ("StopGRPCServiceOnDefrag", false),
    ("TxnModeWriteWithSharedBuffer", true),
];

/// Reads the gates, and the flags that were there before them.
pub(super) fn gates(values: &Values, warnings: &mut Vec<Warning>) -> Result<Gates, ConfigError> {
    let (mut initial, mut compaction, mut all) = (None, None, None);
    if let Some((text, source)) = values.get("feature-gates") {
        for setting in text.split(',').map(str::trim).filter(|setting| !setting.is_empty()) {
            let (name, on) = read(setting, source)?;
            match name {
                "InitialCorruptCheck" => initial = Some(on),
                "CompactHashCheck" => compaction = Some(on),
                "AllAlpha" => all = Some(on),
                _ => match WITHOUT_EFFECT.iter().find(|(known, _)| *known == name) {
                    Some((_, default)) if *default == on => {}
                    Some(_) => warnings.push(Warning::Ignored(format!("{source} {setting}"))),
                    None => {
                        let reason = format!("unrecognized feature gate: {name}");
                        return Err(ConfigError::bad_value(setting, source, reason));
                    }
                },
            }
        }
    }
    let on = |gate: Option<bool>, before: &'static str| {
        Ok::<_, ConfigError>(gate.or(all).unwrap_or(false) || switched_on(values, before)?)
    };
    Ok(Gates {
        initial_corrupt_check: on(initial, "experimental-initial-corrupt-check")?,
        compact_hash_check: on(compaction, "experimental-compact-hash-check-enabled")?,
    })
}

fn read<'a>(setting: &'a str, source: &Source) -> Result<(&'a str, bool), ConfigError> {
    let Some((name, value)) = setting.split_once('=') else {
        return Err(ConfigError::bad_value(setting, source, format!("missing bool value for {setting}")));
    };
    Ok((name.trim(), boolean(value.trim(), source)?))
}

fn switched_on(values: &Values, name: &'static str) -> Result<bool, ConfigError> {
    values.get(name).map_or(Ok(false), |(value, source)| boolean(value, source))
}
