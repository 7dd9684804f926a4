//! How messages are encoded and decoded: prost's way, with the error that grpc-go answers to bytes that do not decode.

use std::marker::PhantomData;

use prost::Message;
use tonic::Status;
use tonic::codec::{DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Encodes `T` and decodes `U`.
#[derive(Clone, Copy, Debug)]
pub struct Codec<T, U>(PhantomData<fn() -> (T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Codec(PhantomData)
    }
}

impl<T, U> tonic::codec::Codec for Codec<T, U>
where
    T: Message + 'static,
    U: Message + Default + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = MessageEncoder<T>;
    type Decoder = MessageDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        MessageEncoder(PhantomData)
    }

    fn decoder(&mut self) -> Self::Decoder {
        MessageDecoder(PhantomData)
    }
}

/// Encodes messages of one type.
#[derive(Debug)]
pub struct MessageEncoder<T>(PhantomData<fn() -> T>);

impl<T: Message> Encoder for MessageEncoder<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.encode_raw(buffer);
        Ok(())
    }
}

/// Decodes messages of one type.
#[derive(Debug)]
pub struct MessageDecoder<U>(PhantomData<fn() -> U>);

impl<U: Message + Default> Decoder for MessageDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        U::decode(buffer).map(Some).map_err(|error| undecodable(&error))
    }
}

/// The status of a request whose bytes are no message of the expected type.
pub fn undecodable(error: &prost::DecodeError) -> Status {
    // prost tells its reasons apart by text only; grpc-go's clients see one of two.
    let reason = if error.to_string().contains("UTF-8") {
        "string field contains invalid UTF-8"
    } else {
        "cannot parse invalid wire-format data"
    };
    Status::internal(format!("grpc: error unmarshalling request: proto: {reason}"))
}
