//! What command lines and environments become.

use super::*;

fn parse_all(
    personality: Personality,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> Result<Invocation, ConfigError> {
    let arguments = arguments.iter().map(|argument| (*argument).to_owned());
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    parse(personality, arguments, variables)
}

fn serve(arguments: &[&str]) -> (Config, Vec<Warning>) {
    serve_with(Personality::Garboard, arguments, &[])
}

fn serve_with(personality: Personality, arguments: &[&str], variables: &[(&str, &str)]) -> (Config, Vec<Warning>) {
    match parse_all(personality, arguments, variables) {
        Ok(Invocation::Serve { config, warnings }) => (*config, warnings),
        other => panic!("expected a configuration, got {other:?}"),
    }
}

fn refused(arguments: &[&str]) -> (String, u8) {
    refused_as(Personality::Garboard, arguments, &[])
}

fn refused_as(personality: Personality, arguments: &[&str], variables: &[(&str, &str)]) -> (String, u8) {
    let error = parse_all(personality, arguments, variables).expect_err("should be refused");
    (error.to_string(), error.exit_code())
}

fn texts(urls: &[Url]) -> Vec<String> {
    urls.iter().map(ToString::to_string).collect()
}

#[test]
fn without_flags_a_server_listens_on_localhost_with_etcds_limits_and_identity() {
    let (config, warnings) = serve(&[]);
    assert_eq!(warnings, []);
    assert_eq!(config.name, "default");
    assert_eq!(config.data_dir, PathBuf::from("garboard.data"));
    assert_eq!(config.wal_dir, None);
    assert_eq!(config.listen_client, [ListenAddress::Tcp("127.0.0.1:2379".parse().unwrap())]);
    assert_eq!(config.listen_peer, ["127.0.0.1:2380".parse().unwrap()]);
    assert_eq!(texts(&config.advertise_client_urls), ["http://localhost:2379"]);
    assert_eq!(config.max_request_bytes, 1_572_864);
    assert_eq!(config.max_txn_ops, 128);
    assert_eq!(config.snapshot_count, 10_000);
    assert_eq!(config.catch_up_commands, 5_000);
    assert_eq!(config.quota_bytes, Some(2_147_483_648));
    assert_eq!(config.auto_compaction, AutoCompaction::Off);
    assert_eq!(config.request_timeout(), Duration::from_secs(7));
    assert_eq!(config.cluster.local().id, 0x8e9e_05c5_2164_694d);
    assert_eq!(config.cluster.cluster_id, 0xcdf8_1819_4e3a_8c32);
    assert_eq!(config.cluster.state, ClusterState::New);
}

#[test]
fn called_as_etcd_the_data_lives_in_a_directory_named_after_the_member() {
    let (config, _) = serve_with(Personality::Etcd, &["--name", "m1"], &[]);
    assert_eq!(config.data_dir, PathBuf::from("m1.etcd"));
    assert_eq!(config.cluster.local().name, "m1");
    assert_eq!(Personality::of_program("/usr/local/bin/etcd"), Personality::Etcd);
    assert_eq!(Personality::of_program("target/debug/garboard"), Personality::Garboard);
}

#[test]
fn one_dash_or_two_with_equals_or_space_mean_the_same() {
    for arguments in [["--name=a", "--data-dir=d"], ["-name=a", "-data-dir=d"]] {
        let (config, _) = serve(&arguments);
        assert_eq!((config.name.as_str(), config.data_dir), ("a", PathBuf::from("d")));
    }
    let (config, _) = serve(&["--name", "a", "-data-dir", "d", "--"]);
    assert_eq!((config.name.as_str(), config.data_dir), ("a", PathBuf::from("d")));
    let (config, _) = serve(&["--initial-cluster-token=a=b"]);
    assert_eq!(config.cluster.token, "a=b");
    let (config, _) = serve(&["--name", "first", "--name", "last"]);
    assert_eq!(config.name, "last");
}

#[test]
fn booleans_stand_alone_or_take_gos_words() {
    assert!(serve(&["--strict-permissions"]).0.strict_permissions);
    assert!(serve(&["-strict-permissions=T"]).0.strict_permissions);
    assert!(!serve(&["--strict-permissions=false"]).0.strict_permissions);
    assert_eq!(
        refused(&["--strict-permissions=yes"]),
        ("invalid value \"yes\" for --strict-permissions: expected true or false".into(), 2)
    );
    assert_eq!(refused(&["--strict-permissions", "true"]), ("\"true\" is not a valid flag".into(), 1));
}

#[test]
fn an_unknown_flag_names_the_nearest_and_ends_with_two() {
    assert_eq!(
        refused(&["--data-dri=x"]),
        ("unknown flag --data-dri; did you mean --data-dir?; --help lists all flags".into(), 2)
    );
    assert_eq!(refused(&["--frobnicate"]), ("unknown flag --frobnicate; --help lists all flags".into(), 2));
    assert_eq!(refused(&["---name=a"]), ("bad flag syntax: ---name=a".into(), 2));
    assert_eq!(refused(&["--=a"]), ("bad flag syntax: --=a".into(), 2));
    assert_eq!(refused(&["--name"]), ("flag --name needs a value: --name=…".into(), 2));
    assert_eq!(refused(&["serve"]), ("\"serve\" is not a valid flag".into(), 1));
    assert_eq!(refused(&["-"]), ("\"-\" is not a valid flag".into(), 1));
    assert_eq!(refused(&["--", "x"]), ("\"x\" is not a valid flag".into(), 1));
}

#[test]
fn what_etcd_has_and_we_lack_is_refused_unless_it_changes_nothing() {
    for argument in ["--cert-file=a", "--config-file=a", "--auto-tls", "--listen-metrics-urls=http://127.0.0.1:2381"] {
        let name = argument.split('=').next().unwrap();
        assert_eq!(refused(&[argument]), (format!("{name} is not supported by Garboard yet; start without it"), 1));
    }
    assert_eq!(serve(&["--cert-file=", "--auto-tls=false"]).1, []);
    let (_, warnings) =
        serve(&["--max-wals=5", "--pre-vote", "--experimental-compaction-batch-limit", "1000", "--logger", "zap"]);
    let ignored = |name: &str| Warning::Ignored(name.to_owned());
    assert_eq!(
        warnings,
        [
            ignored("--max-wals"),
            ignored("--pre-vote"),
            ignored("--experimental-compaction-batch-limit"),
            ignored("--logger"),
        ]
    );
    assert_eq!(warnings[0].to_string(), "--max-wals has no effect in Garboard and is ignored");
}

#[test]
fn an_old_experimental_name_of_a_used_flag_does_what_the_new_one_does() {
    let (config, warnings) = serve(&["--experimental-watch-progress-notify-interval=5s"]);
    assert_eq!((config.watch_progress_interval, warnings), (Duration::from_secs(5), vec![]));
}

#[test]
fn members_states_are_compared_where_gates_and_flags_say_so() {
    let checks = |arguments: &[&str]| {
        let (config, warnings) = serve(arguments);
        assert_eq!(warnings, []);
        (config.initial_corrupt_check, config.corrupt_check_interval, config.compact_hash_check_interval)
    };
    let minute = Some(Duration::from_secs(60));
    assert_eq!(checks(&[]), (false, None, None));
    assert_eq!(checks(&["--feature-gates=InitialCorruptCheck=true"]), (true, None, None));
    assert_eq!(checks(&["--experimental-initial-corrupt-check"]), (true, None, None));
    assert_eq!(checks(&["--feature-gates=CompactHashCheck=true"]), (false, None, minute));
    assert_eq!(checks(&["--feature-gates=AllAlpha=true,CompactHashCheck=false"]), (true, None, None));
    assert_eq!(checks(&["--corrupt-check-time=4h"]), (false, Some(Duration::from_secs(14_400)), None));
    assert_eq!(checks(&["--corrupt-check-time=0s"]), (false, None, None));
    let old = ["--experimental-compact-hash-check-enabled", "--experimental-compact-hash-check-time=5s"];
    assert_eq!(checks(&old), (false, None, Some(Duration::from_secs(5))));
    assert!(refused(&["--feature-gates=Foo=true"]).0.contains("unrecognized feature gate: Foo"));
    assert!(refused(&["--feature-gates=InitialCorruptCheck"]).0.contains("missing bool value for InitialCorruptCheck"));
    assert!(refused(&["--feature-gates=InitialCorruptCheck=maybe"]).0.contains("expected true or false"));
    assert!(refused(&["--compact-hash-check-time=0s"]).0.contains("above 0"));
    assert!(refused(&["--corrupt-check-time=abc"]).0.contains("such as 4h"));
    let (_, warnings) = serve(&["--feature-gates=PriorityRequest=true,LeaseCheckpoint=false,FastLeaseKeepAlive=true"]);
    assert_eq!(warnings, [Warning::Ignored("--feature-gates PriorityRequest=true".to_owned())]);
}

#[test]
fn a_flag_beats_its_variable_and_unknown_variables_are_told() {
    let variables = [
        ("ETCD_NAME", "from-env"),
        ("ETCD_DATA_DIR", "dir-from-env"),
        ("ETCD_WAL_DIR", ""),
        ("ETCD_NMAE", "x"),
        ("ETCD_VERSION", "true"),
        ("ETCDCTL_API", "3"),
        ("PATH", "/bin"),
    ];
    let (config, warnings) = serve_with(Personality::Garboard, &["--name=from-flag"], &variables);
    assert_eq!(config.name, "from-flag");
    assert_eq!(config.data_dir, PathBuf::from("dir-from-env"));
    assert_eq!(config.wal_dir, None);
    assert_eq!(
        warnings,
        [
            Warning::ShadowedVariable { variable: "ETCD_NAME".into(), flag: "name" },
            Warning::UnknownVariable("ETCD_NMAE".into()),
            Warning::UnknownVariable("ETCD_VERSION".into()),
        ]
    );
    assert_eq!(
        refused_as(Personality::Garboard, &[], &[("ETCD_SNAPSHOT_COUNT", "many")]).0,
        format!("invalid value \"many\" for ETCD_SNAPSHOT_COUNT: expected a whole number from 1 to {}", u64::MAX)
    );
}

#[test]
fn clients_may_be_served_on_several_addresses_and_sockets() {
    let urls = "http://127.0.0.1:2379,http://[::1]:2379,unix:///run/garboard.sock";
    let (config, _) = serve(&["--listen-client-urls", urls]);
    assert_eq!(
        config.listen_client,
        [
            ListenAddress::Tcp("127.0.0.1:2379".parse().unwrap()),
            ListenAddress::Tcp("[::1]:2379".parse().unwrap()),
            ListenAddress::Unix("/run/garboard.sock".into()),
        ]
    );
    // Without another word they are what clients are told.
    assert_eq!(texts(&config.advertise_client_urls).len(), 3);
    let (message, code) = refused(&["--listen-client-urls=http://example.com:2379"]);
    assert!(message.ends_with("expected IP in URL for binding (http://example.com:2379)"), "{message}");
    assert_eq!(code, 2);
    assert!(refused(&["--listen-client-urls=https://127.0.0.1:2379"]).0.contains("TLS is not supported yet"));
    assert!(refused(&["--listen-client-urls="]).0.contains("no valid URLs given"));
}

#[test]
fn an_etcd_wants_to_know_what_clients_are_told() {
    let listen = "--listen-client-urls=http://127.0.0.1:2379";
    assert_eq!(
        refused_as(Personality::Etcd, &[listen], &[]),
        ("--advertise-client-urls is required when --listen-client-urls is set explicitly".into(), 1)
    );
    let (config, _) = serve_with(Personality::Etcd, &[listen, "--advertise-client-urls=http://a.example:2379"], &[]);
    assert_eq!(texts(&config.advertise_client_urls), ["http://a.example:2379"]);
    assert_eq!(
        refused(&["--advertise-client-urls=http://:2379"]).0,
        "--advertise-client-urls \"http://:2379\" must be \"host:port\" (unexpected empty host (http://:2379))"
    );
}

#[test]
fn an_initial_cluster_gives_each_member_its_id() {
    let (config, warnings) = serve(&[
        "--name=b",
        "--initial-advertise-peer-urls=http://10.0.0.2:2380",
        "--initial-cluster=b=http://10.0.0.2:2380,a=http://10.0.0.1:2380",
        "--initial-cluster-token=t",
        "--initial-cluster-state=existing",
    ]);
    assert_eq!(warnings, []);
    let cluster = &config.cluster;
    assert_eq!((cluster.members[0].name.as_str(), cluster.members[1].name.as_str()), ("a", "b"));
    assert_eq!((cluster.local().name.as_str(), cluster.state), ("b", ClusterState::Existing));
    assert_eq!(cluster.local().id, member_id(&[Url::parse("http://10.0.0.2:2380").unwrap()], "t"));
    assert_eq!(cluster.cluster_id, cluster_id([cluster.members[0].id, cluster.members[1].id]));
}

#[test]
fn a_cluster_that_does_not_fit_its_member_is_refused() {
    assert_eq!(
        refused(&["--name=c", "--initial-cluster=a=http://10.0.0.1:2380"]).0,
        "couldn't find local name \"c\" in the initial cluster configuration; add c=<peer URL> to --initial-cluster"
    );
    let differs =
        ["--name=a", "--initial-advertise-peer-urls=http://10.0.0.9:2380", "--initial-cluster=a=http://10.0.0.1:2380"];
    // It counts only where a cluster is founded.
    let unfit = serve(&differs).0.cluster.unfit.unwrap();
    assert!(unfit.to_string().contains("make them the same"));
    let by_name =
        ["--name=a", "--initial-advertise-peer-urls=http://host:2380", "--initial-cluster=a=http://10.0.0.1:2380"];
    assert!(matches!(serve(&by_name).1[..], [Warning::AdvertisedDiffers { .. }]));
    let same = ["--name=a", "--initial-cluster=a=http://localhost:2380,b=http://localhost:2380"];
    assert_eq!(refused(&same).0, "members a and b of --initial-cluster have the same peer URLs");
    let twice = ["--name=a", "--initial-cluster=a=http://h:1,a=http://h:2,b=http://h:2"];
    assert_eq!(refused(&twice).0, "initial cluster a=http://h:1,a=http://h:2,b=http://h:2 has duplicate url");
    assert!(refused(&["--initial-cluster=a"]).0.contains("expected name=url instead of \"a\""));
    assert!(refused(&["--initial-cluster-state=old"]).0.contains("expected new or existing"));
}

#[test]
fn retention_is_hours_a_duration_or_a_number_of_revisions() {
    let hours = |count: u64| AutoCompaction::Periodic(Duration::from_secs(count * 3_600));
    for (arguments, expected) in [
        (vec!["--auto-compaction-retention=0"], AutoCompaction::Off),
        (vec!["--auto-compaction-retention=2"], hours(2)),
        (vec!["--auto-compaction-retention=1h"], hours(1)),
        (vec!["--auto-compaction-retention=30m"], AutoCompaction::Periodic(Duration::from_secs(1_800))),
        (vec!["--auto-compaction-mode=revision"], AutoCompaction::Off),
        (vec!["--auto-compaction-mode=revision", "--auto-compaction-retention=1000"], AutoCompaction::Revision(1_000)),
    ] {
        assert_eq!(serve(&arguments).0.auto_compaction, expected, "{arguments:?}");
    }
    assert!(refused(&["--auto-compaction-retention=soon"]).0.contains("a duration such as 30m"));
    assert!(refused(&["--auto-compaction-mode=revision", "--auto-compaction-retention=1h"]).0.contains("revisions"));
    assert!(refused(&["--auto-compaction-mode=daily"]).0.contains("expected periodic or revision"));
}

#[test]
fn limits_and_timers_are_checked() {
    assert_eq!(serve(&["--quota-backend-bytes=-1"]).0.quota_bytes, None);
    assert_eq!(serve(&["--quota-backend-bytes=12345"]).0.quota_bytes, Some(12_345));
    assert_eq!(serve(&["--max-request-bytes=33554432"]).0.max_request_bytes, MAX_REQUEST_BYTES_LIMIT);
    assert_eq!(
        refused(&["--max-request-bytes=33554433"]).0,
        "invalid value \"33554433\" for --max-request-bytes: expected a whole number from 1 to 33554432"
    );
    assert_eq!(serve(&["--checkpoint-bytes=65536"]).0.checkpoint_bytes, Some(65_536));
    assert!(refused(&["--checkpoint-bytes=1"]).0.contains("expected a whole number from 65536"));
    assert_eq!(serve(&["--cores=2"]).0.cores, NonZeroU16::new(2));
    assert!(refused(&["--cores=0"]).0.contains("expected a whole number from 1"));
    assert_eq!(serve(&["--log-level=fatal"]).0.log_level, LogLevel::Error);
    assert!(refused(&["--log-level=loud"]).0.contains("expected debug"));
    assert_eq!(
        refused(&["--election-timeout=400"]).0,
        "--election-timeout[400ms] should be at least as 5 times as --heartbeat-interval[100ms]"
    );
    assert_eq!(serve(&["--election-timeout=2000"]).0.request_timeout(), Duration::from_secs(9));
    assert!(refused(&["--watch-progress-notify-interval=1ms"]).0.contains("at least 100ms"));
}

#[test]
fn version_and_help_are_printed_before_anything_is_checked() {
    let Ok(Invocation::Print(text)) = parse_all(Personality::Etcd, &["--version"], &[]) else { panic!("no text") };
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "etcd Version: 3.7.3");
    for (line, start) in
        lines[1..].iter().zip(["Git SHA: ", "Go Version: ", "Go OS/Arch: linux/", "Garboard Version: "])
    {
        assert!(line.starts_with(start), "{line}");
    }
    let Ok(Invocation::Print(text)) = parse_all(Personality::Garboard, &["-h"], &[]) else { panic!("no text") };
    for flag in flags::USED {
        assert!(text.contains(&format!("--{}", flag.name)), "{}", flag.name);
    }
}

#[test]
fn the_scheme_of_the_peer_urls_decides_about_tls_between_peers() {
    let files = ["--peer-cert-file=c", "--peer-key-file=k", "--peer-trusted-ca-file=a"];
    let https = "--listen-peer-urls=https://127.0.0.1:2380";
    assert_eq!(serve(&[]).0.peer_tls, PeerTls::OwnKey);
    let (plain, warnings) = serve(&files);
    assert_eq!(plain.peer_tls, PeerTls::OwnKey);
    assert_eq!(warnings.len(), 3, "what does not count is said: {warnings:?}");
    let given = |arguments: &[&str]| serve(&[&[https], arguments].concat()).0.peer_tls;
    let with = |authorities: Option<&str>| PeerTls::Files {
        certificate: "c".into(),
        key: "k".into(),
        authorities: authorities.map(PathBuf::from),
        revoked: None,
        allowed: Allowed::Any,
    };
    assert_eq!(given(&files), with(Some("a")));
    assert_eq!(given(&[&files[..], &["--peer-client-cert-auth"]].concat()), with(Some("a")));
    assert_eq!(given(&files[..2]), with(None));
    assert_eq!(given(&["--peer-auto-tls"]), PeerTls::AutoTls);
    let PeerTls::Files { revoked, allowed, .. } =
        given(&[&files[..], &["--peer-crl-file=r", "--peer-cert-allowed-cn=a,b"]].concat())
    else {
        panic!("there are files");
    };
    assert_eq!((revoked, allowed), (Some("r".into()), Allowed::CommonNames(vec!["a".into(), "b".into()])));
    let twice = [https, files[0], files[1], files[2], "--peer-cert-allowed-cn=a", "--peer-cert-allowed-hostname=b"];
    assert!(refused(&twice).0.contains("mutually exclusive"));
    assert!(refused(&[https, files[0], files[1], "--peer-crl-file=r"]).0.contains("--peer-trusted-ca-file"));
    assert!(refused(&[https]).0.contains("needs --peer-cert-file and --peer-key-file"));
    assert!(refused(&[https, files[0]]).0.contains("needs --peer-cert-file"));
    assert!(refused(&[https, files[0], files[1], "--peer-client-cert-auth"]).0.contains("--peer-trusted-ca-file"));
}
