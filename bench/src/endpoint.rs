//! The address of a server's client port.

use crate::error::BenchError;
use std::fmt;

/// `HOST:PORT`, a name or an address; an IPv6 address stands in brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The host without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Endpoint {
    /// Reads `HOST:PORT` or `http://HOST:PORT`.
    pub fn parse(text: &str) -> Result<Self, BenchError> {
        let refuse = |why: &str| BenchError::Argument(format!("endpoint {text:?} {why}"));
        if text.starts_with("https://") || text.starts_with("unix:") {
            return Err(refuse("is not supported: the load speaks gRPC over TCP without TLS"));
        }
        let address = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
        let (host, port) = address.rsplit_once(':').ok_or_else(|| refuse("has no port; write HOST:PORT"))?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if host.is_empty() || host.contains(['/', '@', ' ']) || (bare.is_none() && host.contains(':')) {
            return Err(refuse("has no host that can be read; write HOST:PORT, an IPv6 address in brackets"));
        }
        let port: u16 = port.parse().map_err(|_| refuse("has no port between 1 and 65535"))?;
        if port == 0 {
            return Err(refuse("has no port between 1 and 65535"));
        }
        Ok(Self { host: bare.unwrap_or(host).to_owned(), port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_addresses_and_urls_are_read() {
        for (text, host, port, shown) in [
            ("localhost:2379", "localhost", 2379, "localhost:2379"),
            ("http://10.0.0.1:1/", "10.0.0.1", 1, "10.0.0.1:1"),
            ("[::1]:2379", "::1", 2379, "[::1]:2379"),
        ] {
            let endpoint = Endpoint::parse(text).unwrap();
            assert_eq!((endpoint.host.as_str(), endpoint.port), (host, port));
            assert_eq!(endpoint.to_string(), shown);
        }
    }

    #[test]
    fn what_cannot_be_dialled_is_refused() {
        for text in
            ["", "localhost", ":2379", "h:", "h:0", "h:65536", "h:port", "::1:2379", "https://h:1", "unix:/x", "a/b:1"]
        {
            assert!(matches!(Endpoint::parse(text), Err(BenchError::Argument(_))), "{text:?}");
        }
    }
}
