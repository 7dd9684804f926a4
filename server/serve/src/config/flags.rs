//! The flags: which there are, how a command line and an environment give them values, and what a mistyped one meant.
//!
//! The syntax is Go's: one dash or two, `--x=v` or `--x v`, a bare boolean is true, and `--` ends the flags. A flag beats
//! its `ETCD_*` variable.

use std::collections::BTreeMap;
use std::fmt;

use super::ConfigError;
use super::Warning;

/// What becomes of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It does what it says.
    Used,
    /// etcd has it; here it has nothing to do, so it is accepted with a warning.
    Ignored,
    /// etcd has it and leaving it out would break a promise, so giving it a value is an error.
    Missing,
}

/// One flag.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flag {
    /// Its name, without dashes.
    pub(super) name: &'static str,
    /// Whether it stands alone.
    pub(super) boolean: bool,
    /// What becomes of it.
    pub(super) standing: Standing,
    /// One line for the help text; empty for flags that are not used.
    pub(super) help: &'static str,
}

const fn used(name: &'static str, help: &'static str) -> Flag {
    Flag { name, boolean: false, standing: Standing::Used, help }
}

const fn switch(name: &'static str, help: &'static str) -> Flag {
    Flag { name, boolean: true, standing: Standing::Used, help }
}

/// The flags that do something, in the order of the help text.
pub(super) const USED: &[Flag] = &[
    used("name", "this member's name"),
    used("data-dir", "where the data lives"),
    used("wal-dir", "where the log lives, if not in the data directory"),
    used("listen-client-urls", "where to serve clients: http://ip:port or unix://path, comma-separated"),
    used("advertise-client-urls", "where clients reach this member"),
    used("listen-peer-urls", "where to serve peers"),
    used("initial-advertise-peer-urls", "where peers reach this member"),
    used("peer-cert-file", "this member's certificate towards its peers, with https peer URLs"),
    used("peer-key-file", "the key of that certificate"),
    used("peer-trusted-ca-file", "the authorities that vouch for peers"),
    used("peer-cert-allowed-cn", "common names, one of which a peer's certificate must carry, comma-separated"),
    used("peer-cert-allowed-hostname", "hosts, for one of which a peer's certificate must be good, comma-separated"),
    used("peer-crl-file", "certificates of peers that are not believed any more"),
    switch(
        "peer-client-cert-auth",
        "have an authority vouch for peers that connect, too; always so where there is one",
    ),
    switch("peer-auto-tls", "https peer URLs without certificates: the member's own key is used"),
    used("initial-cluster", "the members of a new cluster: name=url,name=url"),
    used("initial-cluster-token", "tells clusters with the same URLs apart"),
    used("initial-cluster-state", "new or existing"),
    switch("force-new-cluster", "make this member, with the data it has, the only one of its cluster"),
    switch("strict-reconfig-check", "refuse changes of members that could lose the quorum; on unless false"),
    used("max-learners", "most members without a vote"),
    used("snapshot-count", "commands between checkpoints"),
    used("snapshot-catchup-entries", "commands kept in memory for members that lag, 64 MiB at most"),
    used("quota-backend-bytes", "refuse writes beyond this size; 0: 2 GiB, negative: no quota"),
    used("max-txn-ops", "most operations in a transaction"),
    used("max-request-bytes", "largest request, at most 32 MiB"),
    used("auto-compaction-mode", "periodic or revision"),
    used("auto-compaction-retention", "history to keep: a duration, hours, or a number of revisions; 0: all"),
    used("heartbeat-interval", "milliseconds between a leader's heartbeats"),
    used("election-timeout", "milliseconds without a leader before an election"),
    used("max-concurrent-streams", "most calls under way on one connection, at most 16,384"),
    used("grpc-keepalive-interval", "a client silent for so long is asked whether it is there"),
    used("grpc-keepalive-timeout", "how long it may take to answer before its connection is closed"),
    used("watch-progress-notify-interval", "time between progress notifications of an idle watch"),
    used("feature-gates", "etcd's: InitialCorruptCheck=true and CompactHashCheck=true compare members' states"),
    used("corrupt-check-time", "time between comparisons of all members' states; 0: none"),
    used("compact-hash-check-time", "time between comparisons of compactions, with the gate CompactHashCheck"),
    switch("experimental-initial-corrupt-check", "the gate InitialCorruptCheck, as etcd 3.5 has it"),
    switch("experimental-compact-hash-check-enabled", "the gate CompactHashCheck, as etcd 3.5 has it"),
    used("log-level", "debug, info, warn, error, panic or fatal"),
    used("checkpoint-bytes", "write the index to its file once so many bytes of it have changed"),
    used("cores", "number of cores to use; the default is all that the process may use"),
    switch("strict-permissions", "refuse a data directory that others may read"),
    switch("version", "print the version and exit"),
];

/// etcd's flags that have nothing to do here, or whose default is what happens anyway.
const IGNORED: &[&str] = &[
    "auth-token",
    "auth-token-ttl",
    "backend-batch-interval",
    "backend-batch-limit",
    "backend-bbolt-freelist-type",
    "bcrypt-cost",
    "bootstrap-defrag-threshold-megabytes",
    "cluster-active-size",
    "cluster-remove-delay",
    "cluster-sync-interval",
    "compaction-batch-limit",
    "compaction-sleep-interval",
    "config",
    "cors",
    "discovery-fallback",
    "distributed-tracing-address",
    "distributed-tracing-instance-id",
    "distributed-tracing-sampling-rate",
    "distributed-tracing-service-name",
    "downgrade-check-time",
    "force",
    "grpc-keepalive-min-time",
    "host-whitelist",
    "log-format",
    "log-outputs",
    "log-rotation-config-json",
    "logger",
    "max-result-buffer",
    "max-retry-attempts",
    "max-snapshots",
    "max-wals",
    "metrics",
    "peer-election-timeout",
    "peer-heartbeat-interval",
    "raft-read-timeout",
    "raft-write-timeout",
    "retry-interval",
    "self-signed-cert-validity",
    "snapshot",
    "v",
    "v2-deprecation",
    "vv",
    "warning-apply-duration",
    "warning-unary-request-duration",
];

/// The boolean ones among those.
const IGNORED_SWITCHES: &[&str] = &[
    "enable-distributed-tracing",
    "enable-grpc-gateway",
    "enable-log-rotation",
    "enable-pprof",
    "initial-election-tick-advance",
    "memory-mlock",
    "pre-vote",
    "socket-reuse-address",
    "socket-reuse-port",
    "unsafe-no-fsync",
];

/// etcd's flags that are not supported yet and may not be left out in silence.
const MISSING: &[&str] = &[
    "cert-file",
    "cipher-suites",
    "client-cert-allowed-hostname",
    "client-cert-file",
    "client-crl-file",
    "client-key-file",
    "config-file",
    "discovery-cacert",
    "discovery-cert",
    "discovery-dial-timeout",
    "discovery-endpoints",
    "discovery-keepalive-time",
    "discovery-keepalive-timeout",
    "discovery-key",
    "discovery-password",
    "discovery-request-timeout",
    "discovery-srv",
    "discovery-srv-name",
    "discovery-token",
    "discovery-user",
    "key-file",
    "listen-client-http-urls",
    "listen-metrics-urls",
    "peer-client-cert-file",
    "peer-client-key-file",
    "tls-max-version",
    "tls-min-version",
    "trusted-ca-file",
];

/// The boolean ones among those.
const MISSING_SWITCHES: &[&str] = &[
    "auto-tls",
    "client-cert-auth",
    "discovery-insecure-skip-tls-verify",
    "discovery-insecure-transport",
    "peer-skip-client-san-verification",
];

/// Names of before 3.6, which manifests still carry.
const EXPERIMENTAL: &str = "experimental-";

/// The boolean ones among those names, without the prefix. Whether a flag takes the next argument depends on it.
const EXPERIMENTAL_SWITCHES: &[&str] = &[
    "enable-distributed-tracing",
    "enable-lease-checkpoint",
    "enable-lease-checkpoint-persist",
    "memory-mlock",
    "stop-grpc-service-on-defrag",
    "txn-mode-write-with-shared-buffer",
];

/// The flag of a name, if there is one.
pub(super) fn find(name: &str) -> Option<Flag> {
    if let Some(flag) = USED.iter().find(|flag| flag.name == name) {
        return Some(*flag);
    }
    let tables = [
        (IGNORED, false, Standing::Ignored),
        (IGNORED_SWITCHES, true, Standing::Ignored),
        (MISSING, false, Standing::Missing),
        (MISSING_SWITCHES, true, Standing::Missing),
    ];
    tables.into_iter().find_map(|(names, boolean, standing)| {
        let name = names.iter().find(|known| **known == name)?;
        Some(Flag { name, boolean, standing, help: "" })
    })
}

/// Where a value came from, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A flag of this name.
    Flag(String),
    /// The variable that stands for it.
    Variable(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Flag(name) => write!(f, "--{name}"),
            Source::Variable(name) => write!(f, "{name}"),
        }
    }
}

/// The values that command line and environment give, before anything is made of them.
#[derive(Debug, Default)]
pub(super) struct Values {
    values: BTreeMap<&'static str, (String, Source)>,
    /// What to tell the operator.
    pub(super) warnings: Vec<Warning>,
    /// Whether help was asked for.
    pub(super) help: bool,
}

impl Values {
    /// Reads a command line (without the program's own name), then the variables for what it left open.
    pub(super) fn read(
        arguments: impl IntoIterator<Item = String>,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Values, ConfigError> {
        let mut values = Values::default();
        values.read_arguments(arguments.into_iter())?;
        values.read_variables(variables)?;
        Ok(values)
    }

    /// The value of a flag that is used, and where it came from.
    pub(super) fn get(&self, name: &'static str) -> Option<(&str, &Source)> {
        debug_assert!(USED.iter().any(|flag| flag.name == name), "--{name} is not in the table");
        self.values.get(name).map(|(value, source)| (value.as_str(), source))
    }

    fn read_arguments(&mut self, mut arguments: impl Iterator<Item = String>) -> Result<(), ConfigError> {
        while let Some(argument) = arguments.next() {
            let Some(body) = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-')) else {
                return Err(ConfigError::NotAFlag(argument));
            };
            if body.is_empty() {
                // "--" ends the flags, and nothing may follow them.
                return match arguments.next() {
                    Some(extra) => Err(ConfigError::NotAFlag(extra)),
                    None if argument == "--" => Ok(()),
                    None => Err(ConfigError::NotAFlag(argument)),
                };
            }
            let (name, inline) = match body.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (body, None),
            };
            if name.is_empty() || name.starts_with('-') {
                return Err(ConfigError::BadSyntax(argument));
            }
            self.read_flag(name, inline, &mut arguments)?;
        }
        Ok(())
    }

    fn read_flag(
        &mut self,
        name: &str,
        inline: Option<String>,
        rest: &mut impl Iterator<Item = String>,
    ) -> Result<(), ConfigError> {
        if matches!(name, "help" | "h") {
            self.help = true;
            return Ok(());
        }
        let source = Source::Flag(name.to_owned());
        let (boolean, flag) = match (find(name), name.strip_prefix(EXPERIMENTAL)) {
            (Some(flag), _) => (flag.boolean, Some(flag)),
            (None, Some(old)) => (EXPERIMENTAL_SWITCHES.contains(&old), find(old)),
            (None, None) => return Err(ConfigError::UnknownFlag { name: name.to_owned(), nearest: nearest(name) }),
        };
        let value = match inline {
            Some(value) => value,
            None if boolean => "true".to_owned(),
            None => rest.next().ok_or_else(|| ConfigError::NoValue(name.to_owned()))?,
        };
        match flag {
            Some(flag) => self.set(flag, value, source),
            None => {
                self.warnings.push(Warning::Ignored(source.to_string()));
                Ok(())
            }
        }
    }

    fn read_variables(&mut self, variables: impl IntoIterator<Item = (String, String)>) -> Result<(), ConfigError> {
        // In order of names, so that messages do not depend on the order of the environment.
        let variables: BTreeMap<String, String> = variables.into_iter().collect();
        for (variable, value) in variables {
            let Some(rest) = variable.strip_prefix("ETCD_") else { continue };
            if value.is_empty() {
                continue;
            }
            let name = rest.to_ascii_lowercase().replace('_', "-");
            let flag = find(&name).filter(|_| rest == rest.to_ascii_uppercase() && name != "version");
            match flag {
                None => self.warnings.push(Warning::UnknownVariable(variable)),
                Some(flag) if self.values.contains_key(flag.name) => {
                    self.warnings.push(Warning::ShadowedVariable { variable, flag: flag.name });
                }
                Some(flag) => self.set(flag, value, Source::Variable(variable))?,
            }
        }
        Ok(())
    }

    fn set(&mut self, flag: Flag, value: String, source: Source) -> Result<(), ConfigError> {
        if flag.boolean {
            boolean(&value, &source)?;
        }
        match flag.standing {
            Standing::Used => {
                self.values.insert(flag.name, (value, source));
            }
            Standing::Ignored => self.warnings.push(Warning::Ignored(source.to_string())),
            // Turned off or empty, it changes nothing.
            Standing::Missing if value.is_empty() || (flag.boolean && !boolean(&value, &source)?) => {}
            Standing::Missing => return Err(ConfigError::NotSupportedYet(source.to_string())),
        }
        Ok(())
    }
}

/// A boolean as Go reads it.
pub(super) fn boolean(value: &str, source: &Source) -> Result<bool, ConfigError> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(ConfigError::bad_value(value, source, "expected true or false")),
    }
}

/// The known flag whose name is closest to a mistyped one, if any is close.
fn nearest(name: &str) -> Option<&'static str> {
    let known = USED.iter().map(|flag| flag.name);
    let others = [IGNORED, IGNORED_SWITCHES, MISSING, MISSING_SWITCHES].into_iter().flatten().copied();
    let (distance, best) =
        known.chain(others).map(|known| (edit_distance(name, known), known)).min_by_key(|best| best.0)?;
    // More than a third of the name wrong is another name.
    (distance <= (name.len() / 3).max(1)).then_some(best)
}

/// The number of characters to insert, delete or replace to get from one text to the other.
fn edit_distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let replace = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_flag_stands_in_two_tables() {
        let mut names: Vec<&str> = USED.iter().map(|flag| flag.name).collect();
        names.extend([IGNORED, IGNORED_SWITCHES, MISSING, MISSING_SWITCHES].into_iter().flatten());
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn edit_distance_counts_single_character_edits() {
        for (from, to, distance) in [("", "", 0), ("a", "", 1), ("kitten", "sitting", 3), ("data-dir", "datadir", 1)] {
            assert_eq!(edit_distance(from, to), distance, "{from} to {to}");
            assert_eq!(edit_distance(to, from), distance, "{to} to {from}");
        }
    }

    #[test]
    fn a_mistyped_flag_names_the_nearest_and_a_strange_one_none() {
        assert_eq!(nearest("quota-backend-byte"), Some("quota-backend-bytes"));
        assert_eq!(nearest("datadir"), Some("data-dir"));
        assert_eq!(nearest("certfile"), Some("cert-file"));
        assert_eq!(nearest("completely-different-thing"), None);
    }
}
