//! Decoding requests, as lenient as etcd's own decoder.

use bytes::Bytes;
use prost::Message;
use tonic::Status;

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeFailure {
    /// They are not in the wire format.
    WireFormat,
    /// A text is none.
    Utf8,
}

impl DecodeFailure {
    /// grpc-go's answer in a call of one request and one response.
    pub fn in_unary(self) -> Status {
        Status::internal(format!("grpc: error unmarshalling request: {}", self.text()))
    }

    /// grpc-go's answer in a call with a stream on either side.
    pub fn in_stream(self) -> Status {
        Status::internal(format!("grpc: failed to unmarshal the received message: {}", self.text()))
    }

    fn text(self) -> &'static str {
        match self {
            DecodeFailure::WireFormat => "proto: cannot parse invalid wire-format data",
            DecodeFailure::Utf8 => "string field contains invalid UTF-8",
        }
    }
}

/// Decodes a message; its byte fields share the given bytes.
///
/// # Errors
/// When they are no message of this kind.
pub fn decode<Q: Message + Default>(bytes: Bytes) -> Result<Q, DecodeFailure> {
    Q::decode(bytes).map_err(|error| {
        // prost tells its reasons apart by text only.
        if error.to_string().contains("UTF-8") { DecodeFailure::Utf8 } else { DecodeFailure::WireFormat }
    })
}
