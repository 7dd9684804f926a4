//! URLs of listeners and of members, with etcd's rules.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// Why a text is no URL for the purpose.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// There is none.
    #[error("no valid URLs given")]
    Empty,
    /// The scheme is unknown.
    #[error("URL scheme must be http, https, unix, or unixs: {0}")]
    Scheme(String),
    /// The address is not `host:port`.
    #[error("URL address does not have the form \"host:port\": {0}")]
    HostPort(String),
    /// Something follows the address.
    #[error("URL must not contain a path: {0}")]
    Path(String),
    /// A listener needs an address, not a name that could mean several.
    #[error("expected IP in URL for binding ({0})")]
    NotAnIp(String),
    /// The address others should use names no host.
    #[error("unexpected empty host ({0})")]
    EmptyHost(String),
    /// TLS is not there yet.
    #[error("TLS is not supported yet: {0} (use http or unix)")]
    Tls(String),
    /// Peers talk over IP.
    #[error("a peer URL must be http or https: {0}")]
    PeerScheme(String),
}

/// How the other side is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheme {
    /// Plain.
    Http,
    /// TLS.
    Https,
    /// Plain over a socket in the file system.
    Unix,
    /// TLS over a socket in the file system.
    Unixs,
}

impl Scheme {
    const fn name(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
            Scheme::Unix => "unix",
            Scheme::Unixs => "unixs",
        }
    }
}

/// A URL as etcd's flags take it: a scheme and an address. Its text is what identifies a member.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Url {
    text: String,
    scheme: Scheme,
    /// `host:port`, or a path.
    address: String,
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Url {
    /// Reads one URL.
    ///
    /// # Errors
    /// When the scheme is unknown, or the address of an http one is not `host:port` alone.
    pub fn parse(text: &str) -> Result<Url, UrlError> {
        let text = text.trim();
        let (scheme, address) = text.split_once("://").ok_or_else(|| UrlError::Scheme(text.to_owned()))?;
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            "unix" => Scheme::Unix,
            "unixs" => Scheme::Unixs,
            _ => return Err(UrlError::Scheme(text.to_owned())),
        };
        if matches!(scheme, Scheme::Http | Scheme::Https) {
            let end = address.find(['/', '?', '#']).unwrap_or(address.len());
            split_host_port(&address[..end]).ok_or_else(|| UrlError::HostPort(text.to_owned()))?;
            if end < address.len() {
                return Err(UrlError::Path(text.to_owned()));
            }
        }
        Ok(Url { text: format!("{}://{address}", scheme.name()), scheme, address: address.to_owned() })
    }

    /// Reads a comma-separated list; sorted and each URL once, as etcd keeps them.
    ///
    /// # Errors
    /// As [`Url::parse`], and when there is none.
    pub fn parse_list(text: &str) -> Result<Vec<Url>, UrlError> {
        if text.trim().is_empty() {
            return Err(UrlError::Empty);
        }
        let mut urls = text.split(',').map(Url::parse).collect::<Result<Vec<_>, _>>()?;
        urls.sort();
        urls.dedup();
        Ok(urls)
    }

    /// The scheme.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The host of an http URL, without brackets; nothing for a socket in the file system.
    pub fn host(&self) -> Option<&str> {
        match self.scheme {
            Scheme::Http | Scheme::Https => split_host_port(&self.address).map(|(host, _)| host),
            Scheme::Unix | Scheme::Unixs => None,
        }
    }

    /// Host and port of an http URL.
    pub fn host_and_port(&self) -> Option<(&str, u16)> {
        match self.scheme {
            Scheme::Http | Scheme::Https => {
                let (host, port) = split_host_port(&self.address)?;
                Some((host, port.parse().ok()?))
            }
            Scheme::Unix | Scheme::Unixs => None,
        }
    }

    /// Where to listen for clients.
    ///
    /// # Errors
    /// When the host is a name other than `localhost`, the port is no number, or the scheme asks for TLS.
    pub fn listen_address(&self) -> Result<ListenAddress, UrlError> {
        match self.scheme {
            Scheme::Https | Scheme::Unixs => Err(UrlError::Tls(self.text.clone())),
            Scheme::Unix => Ok(ListenAddress::Unix(PathBuf::from(&self.address))),
            Scheme::Http => self.socket_address().map(ListenAddress::Tcp),
        }
    }

    /// Where to listen for peers.
    ///
    /// # Errors
    /// When the host is a name other than `localhost` or the port is no number, and for a socket in the file system.
    pub fn peer_address(&self) -> Result<SocketAddr, UrlError> {
        match self.scheme {
            Scheme::Unix | Scheme::Unixs => Err(UrlError::PeerScheme(self.text.clone())),
            Scheme::Http | Scheme::Https => self.socket_address(),
        }
    }

    /// Checks that others could use it.
    ///
    /// # Errors
    /// When it names no host.
    pub fn check_advertised(&self) -> Result<(), UrlError> {
        match self.host() {
            Some("") => Err(UrlError::EmptyHost(self.text.clone())),
            _ => Ok(()),
        }
    }

    fn socket_address(&self) -> Result<SocketAddr, UrlError> {
        let (host, port) = split_host_port(&self.address).expect("checked when it was parsed");
        let port = port.parse().map_err(|_| UrlError::HostPort(self.text.clone()))?;
        // A listener on this name takes the first address it stands for.
        let ip = if host == "localhost" { Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)) } else { host.parse() };
        ip.map(|ip| SocketAddr::new(ip, port)).map_err(|_| UrlError::NotAnIp(self.text.clone()))
    }
}

/// Where clients are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// An IP address and port.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Tcp(address) => write!(f, "{address}"),
            ListenAddress::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

/// Takes `host:port` apart; an IPv6 address stands in brackets.
fn split_host_port(address: &str) -> Option<(&str, &str)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']')?,
        None if host.contains([':', '[', ']']) => return None,
        None => host,
    };
    (port.bytes().all(|byte| byte.is_ascii_digit())).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_keeps_the_text_that_identifies_a_member() {
        for text in ["http://localhost:2380", "https://[::1]:2380", "unix:///run/etcd.sock", "http://10.0.0.1:2380"] {
            assert_eq!(Url::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Url::parse(" HTTP://a:1 ").unwrap().to_string(), "http://a:1");
    }

    #[test]
    fn what_is_no_url_is_refused_with_etcds_text() {
        for (text, message) in [
            ("", "URL scheme must be http, https, unix, or unixs: "),
            ("localhost:2379", "URL scheme must be http, https, unix, or unixs: localhost:2379"),
            ("ftp://a:1", "URL scheme must be http, https, unix, or unixs: ftp://a:1"),
            ("http://a", "URL address does not have the form \"host:port\": http://a"),
            ("http://::1:2379", "URL address does not have the form \"host:port\": http://::1:2379"),
            ("http://a:b", "URL address does not have the form \"host:port\": http://a:b"),
            ("http://a:1/", "URL must not contain a path: http://a:1/"),
        ] {
            assert_eq!(Url::parse(text).unwrap_err().to_string(), message);
        }
        assert_eq!(Url::parse_list(" "), Err(UrlError::Empty));
    }

    #[test]
    fn a_listener_takes_addresses_localhost_and_sockets() {
        let listen = |text: &str| Url::parse(text).unwrap().listen_address();
        let tcp = |text: &str| Ok(ListenAddress::Tcp(text.parse().unwrap()));
        assert_eq!(listen("http://localhost:2379"), tcp("127.0.0.1:2379"));
        assert_eq!(listen("http://0.0.0.0:2379"), tcp("0.0.0.0:2379"));
        assert_eq!(listen("http://[::]:2379"), tcp("[::]:2379"));
        assert_eq!(listen("unix:///run/a.sock"), Ok(ListenAddress::Unix("/run/a.sock".into())));
        assert_eq!(listen("unix://a.sock"), Ok(ListenAddress::Unix("a.sock".into())));
        assert_eq!(listen("http://example.com:1"), Err(UrlError::NotAnIp("http://example.com:1".into())));
        assert_eq!(listen("http://:2379"), Err(UrlError::NotAnIp("http://:2379".into())));
        assert_eq!(listen("http://1.2.3.4:99999"), Err(UrlError::HostPort("http://1.2.3.4:99999".into())));
        assert_eq!(listen("https://1.2.3.4:1"), Err(UrlError::Tls("https://1.2.3.4:1".into())));
    }

    #[test]
    fn a_peer_listens_on_ip_only() {
        let peer = |text: &str| Url::parse(text).unwrap().peer_address();
        assert_eq!(peer("http://127.0.0.1:2380"), Ok("127.0.0.1:2380".parse().unwrap()));
        assert_eq!(peer("unix://a"), Err(UrlError::PeerScheme("unix://a".into())));
    }

    #[test]
    fn a_list_is_sorted_and_without_repetition() {
        let urls = Url::parse_list("http://b:1,http://a:1,http://b:1").unwrap();
        assert_eq!(urls.iter().map(ToString::to_string).collect::<Vec<_>>(), ["http://a:1", "http://b:1"]);
    }
}
