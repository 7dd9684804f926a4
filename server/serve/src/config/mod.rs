//! The configuration of a server: etcd's flags and variables, parsed into values that need no further checks.

mod duration;
mod flags;
mod gates;
mod identity;
mod url;
mod version;

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use garboard_transport::link::tls::Allowed;

use flags::{Source, Values};
use garboard_replica::limits::MEMBERS_MAX;
pub use identity::{added_member_id, cluster_id, member_id};
pub use url::{ListenAddress, Scheme, Url, UrlError};
pub use version::{ETCD_VERSION, GARBOARD_VERSION, STORAGE_VERSION, version_text};

/// Largest value of `--max-request-bytes`: what a value may take in the index, too.
pub const MAX_REQUEST_BYTES_LIMIT: usize = 32 * 1024 * 1024;
/// Default of `--max-request-bytes`.
pub const DEFAULT_MAX_REQUEST_BYTES: usize = 1_536 * 1024;
/// Default of `--max-txn-ops`.
pub const DEFAULT_MAX_TXN_OPS: usize = 128;
/// Default of `--snapshot-count`.
pub const DEFAULT_SNAPSHOT_COUNT: u64 = 10_000;
/// Default of `--max-learners`.
pub const DEFAULT_MAX_LEARNERS: usize = 1;
/// Default of `--snapshot-catchup-entries`.
pub const DEFAULT_CATCH_UP_COMMANDS: u64 = 5_000;
/// The quota when none is given.
pub const DEFAULT_QUOTA_BYTES: u64 = 2 * 1024 * 1024 * 1024;
/// Smallest value of `--checkpoint-bytes`: below it every few commits would rewrite the index's upper pages.
pub const CHECKPOINT_BYTES_MIN: u64 = 64 * 1024;
/// Largest value of `--checkpoint-bytes`: changed pages wait in memory.
pub const CHECKPOINT_BYTES_MAX: u64 = 64 * 1024 * 1024 * 1024;
/// Longest election timeout, as etcd has it.
pub const ELECTION_TIMEOUT_LIMIT: Duration = Duration::from_secs(50);
/// Shortest interval of progress notifications, as etcd has it.
pub const PROGRESS_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Default of `--compact-hash-check-time`.
const DEFAULT_COMPACT_HASH_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Members' states are compared no more often than this, whatever the flags say.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Default of `--grpc-keepalive-interval`.
pub const DEFAULT_KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2 * 3_600);
/// Default of `--grpc-keepalive-timeout`.
pub const DEFAULT_KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// The shortest of either.
pub const KEEPALIVE_MIN: Duration = Duration::from_secs(1);

const DEFAULT_CLIENT_URL: &str = "http://localhost:2379";
const DEFAULT_PEER_URL: &str = "http://localhost:2380";
const DEFAULT_NAME: &str = "default";
const DEFAULT_TOKEN: &str = "etcd-cluster";

/// Under which name the server was called: it decides the defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Personality {
    /// `garboard serve`.
    Garboard,
    /// Through a link named `etcd`.
    Etcd,
}

impl Personality {
    /// Which one a program's name asks for.
    pub fn of_program(path: &str) -> Personality {
        match std::path::Path::new(path).file_name() {
            Some(name) if name == "etcd" => Personality::Etcd,
            _ => Personality::Garboard,
        }
    }
}

/// What a command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invocation {
    /// Serve, after telling the operator the warnings.
    Serve {
        /// With this configuration.
        config: Box<Config>,
        /// What the operator should know.
        warnings: Vec<Warning>,
    },
    /// Print this text and exit successfully.
    Print(String),
}

/// A server's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The member's name.
    pub name: String,
    /// Where its data lives.
    pub data_dir: PathBuf,
    /// Where its log lives; within the data directory if not given.
    pub wal_dir: Option<PathBuf>,
    /// Where clients are served; at least one.
    pub listen_client: Vec<ListenAddress>,
    /// Where clients reach it, as the member list shows it.
    pub advertise_client_urls: Vec<Url>,
    /// Where peers are served; at least one.
    pub listen_peer: Vec<SocketAddr>,
    /// What this member shows its peers, and whom it believes.
    pub peer_tls: PeerTls,
    /// The cluster as it starts.
    pub cluster: InitialCluster,
    /// Whether this member, with the data it has, becomes the only one.
    pub force_new_cluster: bool,
    /// Whether changes of the members that could lose the quorum are refused.
    pub strict_reconfig: bool,
    /// Most members without a vote.
    pub max_learners: usize,
    /// Accepted for the manifests that set it; checkpoints follow the bytes that have changed.
    pub snapshot_count: u64,
    /// Commands of the log that are kept in memory for members that lag.
    pub catch_up_commands: u64,
    /// The size beyond which writes are refused; nothing: no quota.
    pub quota_bytes: Option<u64>,
    /// Most operations in a transaction.
    pub max_txn_ops: usize,
    /// Largest request.
    pub max_request_bytes: usize,
    /// Which history is given up by itself.
    pub auto_compaction: AutoCompaction,
    /// Time between a leader's heartbeats.
    pub heartbeat_interval: Duration,
    /// Time without a leader before an election.
    pub election_timeout: Duration,
    /// Whether this member's state is compared with those of others before it serves.
    pub initial_corrupt_check: bool,
    /// Time between a leader's comparisons of all members' states; nothing: there are none.
    pub corrupt_check_interval: Option<Duration>,
    /// Time between a leader's comparisons of compactions; nothing: there are none.
    pub compact_hash_check_interval: Option<Duration>,
    /// Time between progress notifications of an idle watch.
    pub watch_progress_interval: Duration,
    /// Most calls under way on one connection.
    pub max_concurrent_streams: u32,
    /// How long a connection may be silent before its client is asked whether it is there.
    pub keepalive_interval: Duration,
    /// How long the client may take to answer that.
    pub keepalive_timeout: Duration,
    /// What is logged.
    pub log_level: LogLevel,
    /// Changed bytes of the index that start a checkpoint; nothing: the index's own choice.
    pub checkpoint_bytes: Option<u64>,
    /// How many cores to use; nothing: those the process may use.
    pub cores: Option<NonZeroU16>,
    /// Whether a data directory that others may read is refused.
    pub strict_permissions: bool,
}

impl Config {
    /// How long a request may take: 5 s to do it and two election timeouts to find a leader.
    pub fn request_timeout(&self) -> Duration {
        Duration::from_secs(5) + 2 * self.election_timeout
    }
}

/// What a member shows its peers, and whom it believes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerTls {
    /// A key of its own, that peers remember at first contact. Over TCP there is no TLS.
    OwnKey,
    /// The same with TLS over TCP.
    AutoTls,
    /// A certificate.
    Files {
        /// The certificate.
        certificate: PathBuf,
        /// Its key.
        key: PathBuf,
        /// The authorities that vouch for peers; without them their keys are remembered at first contact.
        authorities: Option<PathBuf>,
        /// Certificates that are not believed any more.
        revoked: Option<PathBuf>,
        /// What peers' certificates must carry besides.
        allowed: Allowed,
    },
}

/// The members a cluster starts with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitialCluster {
    /// Tells clusters with the same URLs apart.
    pub token: String,
    /// Whether the cluster is new.
    pub state: ClusterState,
    /// The members, in order of names; this one is among them.
    pub members: Vec<InitialMember>,
    /// Where this member stands among them.
    pub local: usize,
    /// The cluster's id.
    pub cluster_id: u64,
    /// Why no cluster can be founded on this; where there is data, or a cluster to join, it does not matter.
    pub unfit: Option<ConfigError>,
}

impl InitialCluster {
    /// This member.
    pub fn local(&self) -> &InitialMember {
        &self.members[self.local]
    }
}

/// A member a cluster starts with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitialMember {
    /// Its id.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Where peers reach it, sorted.
    pub peer_urls: Vec<Url>,
}

/// Whether a member starts a cluster or joins one. It counts only while there is no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterState {
    /// It starts one.
    New,
    /// It joins one.
    Existing,
}

/// Which history is given up by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoCompaction {
    /// None.
    Off,
    /// What is older than this.
    Periodic(Duration),
    /// All but this many of the newest revisions.
    Revision(i64),
}

/// What is logged: this and what is graver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Everything.
    Debug,
    /// What an operator may want to know.
    Info,
    /// What may need attention.
    Warn,
    /// What went wrong; etcd's graver levels are held to be the same.
    Error,
}

impl FromStr for LogLevel {
    type Err = ();

    fn from_str(text: &str) -> Result<LogLevel, ()> {
        match text.to_ascii_lowercase().as_str() {
            "debug" => Ok(LogLevel::Debug),
            "info" => Ok(LogLevel::Info),
            "warn" => Ok(LogLevel::Warn),
            "error" | "dpanic" | "panic" | "fatal" => Ok(LogLevel::Error),
            _ => Err(()),
        }
    }
}

/// What an operator should know although it stops nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// A flag or variable has nothing to do here.
    Ignored(String),
    /// A variable looks like etcd's and is none.
    UnknownVariable(String),
    /// A variable does not count because its flag is given.
    ShadowedVariable {
        /// The variable.
        variable: String,
        /// The flag that beats it.
        flag: &'static str,
    },
    /// A flag of TLS between peers does not count because their URLs ask for none.
    PeersWithoutTls(&'static str),
    /// The member's URLs among the cluster's can't be told to be those it advertises.
    AdvertisedDiffers {
        /// As `--initial-cluster` has them.
        in_cluster: String,
        /// As `--initial-advertise-peer-urls` has them.
        advertised: String,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::Ignored(source) => write!(f, "{source} has no effect in Garboard and is ignored"),
            Warning::UnknownVariable(variable) => write!(f, "unrecognized environment variable {variable}"),
            Warning::ShadowedVariable { variable, flag } => {
                write!(f, "environment variable {variable} does not count because --{flag} is given")
            }
            Warning::PeersWithoutTls(flag) => {
                write!(f, "--{flag} does not count because --listen-peer-urls has no https URL")
            }
            Warning::AdvertisedDiffers { in_cluster, advertised } => write!(
                f,
                "--initial-cluster has {in_cluster} for this member, --initial-advertise-peer-urls has {advertised}: \
                 peers must find the same address behind both"
            ),
        }
    }
}

/// Why a command line or environment makes no configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// There is no such flag.
    #[error("unknown flag --{name}{}; --help lists all flags", suggestion(.nearest))]
    UnknownFlag {
        /// As it was given.
        name: String,
        /// What may have been meant.
        nearest: Option<&'static str>,
    },
    /// A word that belongs to no flag.
    #[error("{0:?} is not a valid flag")]
    NotAFlag(String),
    /// More dashes than two, or a value without a name.
    #[error("bad flag syntax: {0}")]
    BadSyntax(String),
    /// The last flag lacks its value.
    #[error("flag --{0} needs a value: --{0}=…")]
    NoValue(String),
    /// A value does not say what its flag is about.
    #[error("invalid value {value:?} for {source_name}: {reason}")]
    BadValue {
        /// The value.
        value: String,
        /// The flag or variable.
        source_name: String,
        /// Whether it came from the command line.
        from_flag: bool,
        /// What was expected.
        reason: String,
    },
    /// etcd has the flag and leaving it out would break a promise.
    #[error("{0} is not supported by Garboard yet; start without it")]
    NotSupportedYet(String),
    /// Clients could not be told where to go.
    #[error("--advertise-client-urls is required when --listen-client-urls is set explicitly")]
    AdvertiseClientUrlsMissing,
    /// Listening on an address that others should use, but which is none for them.
    #[error("--{flag} {urls:?} must be \"host:port\" ({reason})")]
    NotAdvertisable {
        /// The flag.
        flag: &'static str,
        /// Its value.
        urls: String,
        /// What is wrong with it.
        reason: UrlError,
    },
    /// The cluster does not contain this member.
    #[error(
        "couldn't find local name {0:?} in the initial cluster configuration; add {0}=<peer URL> to --initial-cluster"
    )]
    NotInCluster(String),
    /// The member's URLs in the cluster are not those it advertises.
    #[error(
        "--initial-cluster has {in_cluster} for this member but --initial-advertise-peer-urls has {advertised}; \
         make them the same"
    )]
    AdvertisedDiffers {
        /// As the cluster has them.
        in_cluster: String,
        /// As they are advertised.
        advertised: String,
    },
    /// Two members can't be told apart.
    #[error("members {0} and {1} of --initial-cluster have the same peer URLs")]
    SameMember(String, String),
    /// A URL stands twice, or there are far too many members.
    #[error("initial cluster {0} has duplicate url")]
    DuplicateUrl(String),
    /// Peers are to be spoken to over TLS, without a certificate.
    #[error("--listen-peer-urls has {0}, which needs --peer-cert-file and --peer-key-file, or --peer-auto-tls")]
    NoPeerCertificate(String),
    /// Nobody vouches for peers.
    #[error("--{0} needs --peer-trusted-ca-file")]
    NoAuthorityFor(&'static str),
    /// Peers' names are allowed in two ways.
    #[error("--peer-cert-allowed-cn and --peer-cert-allowed-hostname are mutually exclusive")]
    AllowedNamesTwice,
    /// The timers do not fit each other.
    #[error(
        "--election-timeout[{election_ms}ms] should be at least as 5 times as --heartbeat-interval[{heartbeat_ms}ms]"
    )]
    ElectionTooShort {
        /// The election timeout.
        election_ms: u64,
        /// The heartbeat interval.
        heartbeat_ms: u64,
    },
}

fn suggestion(nearest: &Option<&'static str>) -> String {
    nearest.map(|name| format!("; did you mean --{name}?")).unwrap_or_default()
}

impl ConfigError {
    fn bad_value(value: &str, source: &Source, reason: impl Into<String>) -> ConfigError {
        ConfigError::BadValue {
            value: value.to_owned(),
            source_name: source.to_string(),
            from_flag: matches!(source, Source::Flag(_)),
            reason: reason.into(),
        }
    }

    /// The exit code that etcd's would be: 2 when the command line itself does not read, 1 otherwise.
    pub fn exit_code(&self) -> u8 {
        match self {
            ConfigError::UnknownFlag { .. } | ConfigError::BadSyntax(_) | ConfigError::NoValue(_) => 2,
            ConfigError::BadValue { from_flag: true, .. } => 2,
            _ => 1,
        }
    }
}

/// Makes a configuration of a command line (without the program's name and subcommand) and an environment.
///
/// # Errors
/// When a flag is unknown or not supported yet, when a value does not fit its flag, and when values do not fit each
/// other.
pub fn parse(
    personality: Personality,
    arguments: impl IntoIterator<Item = String>,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<Invocation, ConfigError> {
    let values = Values::read(arguments, variables)?;
    if values.help {
        return Ok(Invocation::Print(help_text(personality)));
    }
    if let Some((value, source)) = values.get("version")
        && flags::boolean(value, source)?
    {
        return Ok(Invocation::Print(version_text()));
    }
    let mut warnings = values.warnings.clone();
    let config = Box::new(build(personality, &values, &mut warnings)?);
    Ok(Invocation::Serve { config, warnings })
}

fn build(personality: Personality, values: &Values, warnings: &mut Vec<Warning>) -> Result<Config, ConfigError> {
    let name = values.text("name").unwrap_or(DEFAULT_NAME).to_owned();
    let default_dir = match personality {
        Personality::Garboard => PathBuf::from("garboard.data"),
        Personality::Etcd => PathBuf::from(format!("{name}.etcd")),
    };
    let (heartbeat_interval, election_timeout) = timers(values)?;
    let gates = gates::gates(values, warnings)?;
    let compact_hash_check_interval = compact_hash_check_interval(values)?;
    Ok(Config {
        initial_corrupt_check: gates.initial_corrupt_check,
        corrupt_check_interval: corrupt_check_interval(values)?,
        compact_hash_check_interval: compact_hash_check_interval.filter(|_| gates.compact_hash_check),
        data_dir: values.text("data-dir").map_or(default_dir, PathBuf::from),
        wal_dir: values.text("wal-dir").map(PathBuf::from),
        listen_client: values.listen_client()?,
        advertise_client_urls: advertised_client_urls(personality, values)?,
        listen_peer: values.listen_peer()?,
        peer_tls: peer_tls(values, warnings)?,
        cluster: initial_cluster(&name, values, warnings)?,
        force_new_cluster: values.boolean("force-new-cluster")?,
        strict_reconfig: values.get("strict-reconfig-check").is_none() || values.boolean("strict-reconfig-check")?,
        max_learners: values.number("max-learners", DEFAULT_MAX_LEARNERS, 1, MEMBERS_MAX)?,
        snapshot_count: values.number("snapshot-count", DEFAULT_SNAPSHOT_COUNT, 1, u64::MAX)?,
        catch_up_commands: values.number("snapshot-catchup-entries", DEFAULT_CATCH_UP_COMMANDS, 0, u64::MAX)?,
        quota_bytes: quota(values)?,
        max_txn_ops: values.number("max-txn-ops", DEFAULT_MAX_TXN_OPS, 1, usize::from(u16::MAX))?,
        max_request_bytes: values.number("max-request-bytes", DEFAULT_MAX_REQUEST_BYTES, 1, MAX_REQUEST_BYTES_LIMIT)?,
        auto_compaction: auto_compaction(values)?,
        heartbeat_interval,
        election_timeout,
        watch_progress_interval: progress_interval(values)?,
        max_concurrent_streams: values.number("max-concurrent-streams", u32::MAX, 1, u32::MAX)?,
        keepalive_interval: keepalive(values, "grpc-keepalive-interval", DEFAULT_KEEPALIVE_INTERVAL)?,
        keepalive_timeout: keepalive(values, "grpc-keepalive-timeout", DEFAULT_KEEPALIVE_TIMEOUT)?,
        log_level: values.parsed("log-level", LogLevel::Info, "expected debug, info, warn, error, panic or fatal")?,
        checkpoint_bytes: values.checkpoint_bytes()?,
        cores: values.cores()?,
        strict_permissions: values.boolean("strict-permissions")?,
        name,
    })
}

fn peer_tls(values: &Values, warnings: &mut Vec<Warning>) -> Result<PeerTls, ConfigError> {
    /// What only an authority's word gives a sense to.
    const BEYOND_AUTHORITY: [&str; 3] = ["peer-cert-allowed-cn", "peer-cert-allowed-hostname", "peer-crl-file"];
    let listened = values.urls("listen-peer-urls", DEFAULT_PEER_URL)?;
    let secure = listened.iter().find(|url| url.scheme() == Scheme::Https);
    let files = (values.text("peer-cert-file"), values.text("peer-key-file"));
    let authorities = values.text("peer-trusted-ca-file").map(PathBuf::from);
    let Some(secure) = secure else {
        // As etcd: the scheme decides.
        let given = ["peer-cert-file", "peer-key-file", "peer-trusted-ca-file"].into_iter().chain(BEYOND_AUTHORITY);
        let given = given.filter(|name| values.text(name).is_some());
        warnings.extend(given.map(Warning::PeersWithoutTls));
        return Ok(PeerTls::OwnKey);
    };
    if authorities.is_none()
        && let Some(flag) = BEYOND_AUTHORITY.into_iter().find(|name| values.text(name).is_some())
    {
        return Err(ConfigError::NoAuthorityFor(flag));
    }
    match files {
        (Some(certificate), Some(key)) => {
            if authorities.is_none() && values.boolean("peer-client-cert-auth")? {
                return Err(ConfigError::NoAuthorityFor("peer-client-cert-auth"));
            }
            let list = |name| values.text(name).map(|names| names.split(',').map(str::to_owned).collect::<Vec<_>>());
            let allowed = match (list("peer-cert-allowed-cn"), list("peer-cert-allowed-hostname")) {
                (Some(_), Some(_)) => return Err(ConfigError::AllowedNamesTwice),
                (Some(names), None) => Allowed::CommonNames(names),
                (None, Some(names)) => Allowed::Hostnames(names),
                (None, None) => Allowed::Any,
            };
            let revoked = values.text("peer-crl-file").map(PathBuf::from);
            Ok(PeerTls::Files { certificate: certificate.into(), key: key.into(), authorities, revoked, allowed })
        }
        (None, None) if values.boolean("peer-auto-tls")? => Ok(PeerTls::AutoTls),
        _ => Err(ConfigError::NoPeerCertificate(secure.to_string())),
    }
}

/// Without `--advertise-client-urls` they are what is listened on, but an etcd asks for them: a client that syncs its
/// endpoints would go where the default points.
fn advertised_client_urls(personality: Personality, values: &Values) -> Result<Vec<Url>, ConfigError> {
    let listens = values.get("listen-client-urls").is_some();
    if personality == Personality::Etcd && listens && values.get("advertise-client-urls").is_none() {
        return Err(ConfigError::AdvertiseClientUrlsMissing);
    }
    let listened = values.urls("listen-client-urls", DEFAULT_CLIENT_URL)?;
    let urls = match values.get("advertise-client-urls") {
        Some(_) => values.urls("advertise-client-urls", DEFAULT_CLIENT_URL)?,
        None => listened,
    };
    check_advertised("advertise-client-urls", urls)
}

fn check_advertised(flag: &'static str, urls: Vec<Url>) -> Result<Vec<Url>, ConfigError> {
    for url in &urls {
        url.check_advertised().map_err(|reason| ConfigError::NotAdvertisable { flag, urls: join(&urls), reason })?;
    }
    Ok(urls)
}

fn initial_cluster(name: &str, values: &Values, warnings: &mut Vec<Warning>) -> Result<InitialCluster, ConfigError> {
    let token = values.text("initial-cluster-token").unwrap_or(DEFAULT_TOKEN).to_owned();
    let advertised = values.urls("initial-advertise-peer-urls", DEFAULT_PEER_URL)?;
    let advertised = check_advertised("initial-advertise-peer-urls", advertised)?;
    let mut members = match values.get("initial-cluster") {
        None => vec![InitialMember { id: 0, name: name.to_owned(), peer_urls: advertised.clone() }],
        Some((text, source)) => cluster_members(text).map_err(|reason| ConfigError::bad_value(text, source, reason))?,
    };
    for member in &mut members {
        member.id = member_id(&member.peer_urls, &token);
    }
    for (at, member) in members.iter().enumerate() {
        if let Some(other) = members[..at].iter().find(|other| other.id == member.id) {
            return Err(ConfigError::SameMember(other.name.clone(), member.name.clone()));
        }
    }
    let local = members.iter().position(|member| member.name == name);
    let local = local.ok_or_else(|| ConfigError::NotInCluster(name.to_owned()))?;
    let unfit = compare_advertised(&members[local].peer_urls, &advertised, warnings).err();
    check_duplicate_urls(&members)?;
    let cluster_id = cluster_id(members.iter().map(|member| member.id));
    Ok(InitialCluster { token, state: cluster_state(values)?, members, local, cluster_id, unfit })
}

/// Reads `name=url,name=url`; a name may come several times with a URL each.
fn cluster_members(text: &str) -> Result<Vec<InitialMember>, String> {
    let mut members: Vec<InitialMember> = Vec::new();
    for pair in text.split(',').filter(|pair| !pair.is_empty()) {
        let (name, url) = pair.split_once('=').ok_or_else(|| format!("expected name=url instead of {pair:?}"))?;
        let url = Url::parse(url).map_err(|error| error.to_string())?;
        match members.iter_mut().find(|member| member.name == name) {
            Some(member) => member.peer_urls.push(url),
            None => members.push(InitialMember { id: 0, name: name.to_owned(), peer_urls: vec![url] }),
        }
    }
    members.sort_by(|a, b| a.name.cmp(&b.name));
    for member in &mut members {
        member.peer_urls.sort();
    }
    Ok(members)
}

fn check_duplicate_urls(members: &[InitialMember]) -> Result<(), ConfigError> {
    let mut urls: Vec<&Url> = members.iter().flat_map(|member| &member.peer_urls).collect();
    let count = urls.len();
    urls.sort_unstable();
    urls.dedup();
    if urls.len() == count && members.len() <= MEMBERS_MAX {
        return Ok(());
    }
    let pairs = members.iter().flat_map(|member| member.peer_urls.iter().map(|url| format!("{}={url}", member.name)));
    Err(ConfigError::DuplicateUrl(pairs.collect::<Vec<_>>().join(",")))
}

/// The member must be in the cluster under the URLs it advertises. Names may stand for addresses, which only a resolver
/// knows, so only addresses that differ are an error.
fn compare_advertised(in_cluster: &[Url], advertised: &[Url], warnings: &mut Vec<Warning>) -> Result<(), ConfigError> {
    if in_cluster == advertised {
        return Ok(());
    }
    let is_address = |url: &Url| url.host().is_some_and(|host| host.parse::<std::net::IpAddr>().is_ok());
    let texts = (join(in_cluster), join(advertised));
    if in_cluster.len() != advertised.len() || in_cluster.iter().chain(advertised).all(is_address) {
        return Err(ConfigError::AdvertisedDiffers { in_cluster: texts.0, advertised: texts.1 });
    }
    warnings.push(Warning::AdvertisedDiffers { in_cluster: texts.0, advertised: texts.1 });
    Ok(())
}

fn join(urls: &[Url]) -> String {
    urls.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn cluster_state(values: &Values) -> Result<ClusterState, ConfigError> {
    match values.get("initial-cluster-state") {
        None | Some(("new", _)) => Ok(ClusterState::New),
        Some(("existing", _)) => Ok(ClusterState::Existing),
        Some((value, source)) => Err(ConfigError::bad_value(value, source, "expected new or existing")),
    }
}

fn quota(values: &Values) -> Result<Option<u64>, ConfigError> {
    let quota: i64 = values.parsed("quota-backend-bytes", 0, "expected a whole number of bytes")?;
    match quota {
        0 => Ok(Some(DEFAULT_QUOTA_BYTES)),
        bytes => Ok(u64::try_from(bytes).ok()),
    }
}

fn auto_compaction(values: &Values) -> Result<AutoCompaction, ConfigError> {
    let by_revision = match values.get("auto-compaction-mode") {
        None | Some(("periodic", _)) => false,
        Some(("revision", _)) => true,
        Some((value, source)) => return Err(ConfigError::bad_value(value, source, "expected periodic or revision")),
    };
    let Some((text, source)) = values.get("auto-compaction-retention") else { return Ok(AutoCompaction::Off) };
    let bad = |reason: &str| ConfigError::bad_value(text, source, reason);
    if by_revision {
        let revisions = text.parse().ok().filter(|revisions: &i64| *revisions >= 0);
        let revisions = revisions.ok_or_else(|| bad("expected a number of revisions to keep, 0 for all"))?;
        return Ok(if revisions == 0 { AutoCompaction::Off } else { AutoCompaction::Revision(revisions) });
    }
    let period = match text.parse::<u32>() {
        Ok(hours) => Some(Duration::from_secs(u64::from(hours) * 3_600)),
        Err(_) => duration::parse(text),
    };
    match period.ok_or_else(|| bad("expected a number of hours or a duration such as 30m"))? {
        Duration::ZERO => Ok(AutoCompaction::Off),
        period => Ok(AutoCompaction::Periodic(period)),
    }
}

fn timers(values: &Values) -> Result<(Duration, Duration), ConfigError> {
    let limit_ms = u64::try_from(ELECTION_TIMEOUT_LIMIT.as_millis()).expect("50,000 fits");
    let heartbeat_ms: u64 = values.number("heartbeat-interval", 100, 1, limit_ms)?;
    let election_ms: u64 = values.number("election-timeout", 1_000, 1, limit_ms)?;
    if 5 * heartbeat_ms > election_ms {
        return Err(ConfigError::ElectionTooShort { election_ms, heartbeat_ms });
    }
    Ok((Duration::from_millis(heartbeat_ms), Duration::from_millis(election_ms)))
}

/// As with etcd, 0 stands for gRPC's own default, and nothing is quicker than a second.
fn keepalive(values: &Values, name: &'static str, default: Duration) -> Result<Duration, ConfigError> {
    let Some((text, source)) = values.get(name) else { return Ok(default) };
    match duration::parse(text) {
        Some(Duration::ZERO) => Ok(default),
        Some(time) => Ok(time.max(KEEPALIVE_MIN)),
        None => Err(ConfigError::bad_value(text, source, "expected a duration such as 2h")),
    }
}

fn corrupt_check_interval(values: &Values) -> Result<Option<Duration>, ConfigError> {
    let Some((text, source)) = values.get("corrupt-check-time") else { return Ok(None) };
    let interval = duration::parse(text);
    let interval = interval.ok_or_else(|| ConfigError::bad_value(text, source, "expected a duration such as 4h"))?;
    Ok(Some(interval.max(CHECK_INTERVAL_MIN)).filter(|_| interval > Duration::ZERO))
}

fn compact_hash_check_interval(values: &Values) -> Result<Option<Duration>, ConfigError> {
    let Some((text, source)) = values.get("compact-hash-check-time") else {
        return Ok(Some(DEFAULT_COMPACT_HASH_CHECK_INTERVAL));
    };
    let interval = duration::parse(text).filter(|interval| *interval > Duration::ZERO);
    let interval = interval.ok_or_else(|| ConfigError::bad_value(text, source, "expected a duration above 0"))?;
    Ok(Some(interval.max(CHECK_INTERVAL_MIN)))
}

fn progress_interval(values: &Values) -> Result<Duration, ConfigError> {
    let Some((text, source)) = values.get("watch-progress-notify-interval") else {
        return Ok(Duration::from_secs(600));
    };
    let interval = duration::parse(text).filter(|interval| *interval >= PROGRESS_INTERVAL_MIN);
    interval.ok_or_else(|| ConfigError::bad_value(text, source, "expected a duration of at least 100ms"))
}

/// Typed access; every failure names the flag or variable.
impl Values {
    fn text(&self, name: &'static str) -> Option<&str> {
        self.get(name).map(|(value, _)| value).filter(|value| !value.is_empty())
    }

    fn parsed<T: FromStr>(&self, name: &'static str, default: T, expected: &str) -> Result<T, ConfigError> {
        match self.get(name) {
            None => Ok(default),
            Some((value, source)) => value.parse().map_err(|_| ConfigError::bad_value(value, source, expected)),
        }
    }

    fn number<T>(&self, name: &'static str, default: T, min: T, max: T) -> Result<T, ConfigError>
    where
        T: FromStr + PartialOrd + fmt::Display,
    {
        let Some((value, source)) = self.get(name) else { return Ok(default) };
        let number = value.parse().ok().filter(|number| *number >= min && *number <= max);
        number.ok_or_else(|| {
            ConfigError::bad_value(value, source, format!("expected a whole number from {min} to {max}"))
        })
    }

    fn boolean(&self, name: &'static str) -> Result<bool, ConfigError> {
        self.get(name).map_or(Ok(false), |(value, source)| flags::boolean(value, source))
    }

    fn cores(&self) -> Result<Option<NonZeroU16>, ConfigError> {
        match self.get("cores") {
            None => Ok(None),
            Some(_) => self.number("cores", NonZeroU16::MIN, NonZeroU16::MIN, NonZeroU16::MAX).map(Some),
        }
    }

    fn checkpoint_bytes(&self) -> Result<Option<u64>, ConfigError> {
        match self.get("checkpoint-bytes") {
            None => Ok(None),
            Some(_) => self.number("checkpoint-bytes", 0, CHECKPOINT_BYTES_MIN, CHECKPOINT_BYTES_MAX).map(Some),
        }
    }

    fn urls(&self, name: &'static str, default: &str) -> Result<Vec<Url>, ConfigError> {
        match self.get(name) {
            None => Ok(vec![Url::parse(default).expect("the defaults are URLs")]),
            Some((value, source)) => {
                Url::parse_list(value).map_err(|error| ConfigError::bad_value(value, source, error.to_string()))
            }
        }
    }

    fn listen_client(&self) -> Result<Vec<ListenAddress>, ConfigError> {
        self.addresses("listen-client-urls", DEFAULT_CLIENT_URL, Url::listen_address)
    }

    fn listen_peer(&self) -> Result<Vec<SocketAddr>, ConfigError> {
        self.addresses("listen-peer-urls", DEFAULT_PEER_URL, Url::peer_address)
    }

    fn addresses<T>(
        &self,
        name: &'static str,
        default: &str,
        address: impl Fn(&Url) -> Result<T, UrlError>,
    ) -> Result<Vec<T>, ConfigError> {
        let urls = self.urls(name, default)?;
        urls.iter().map(address).collect::<Result<_, _>>().map_err(|error| match self.get(name) {
            Some((value, source)) => ConfigError::bad_value(value, source, error.to_string()),
            None => unreachable!("the defaults can be listened on"),
        })
    }
}

fn help_text(personality: Personality) -> String {
    let usage = match personality {
        Personality::Garboard => "garboard serve",
        Personality::Etcd => "etcd",
    };
    let mut text =
        format!("Usage: {usage} [flags]\n\nEach flag may also be given as ETCD_<NAME>; a flag counts more.\n\n");
    for flag in flags::USED {
        let value = if flag.boolean { "" } else { "=…" };
        text.push_str(&format!("  --{:<34} {}\n", format!("{}{value}", flag.name), flag.help));
    }
    text
}
