//! What each operation is: its key, its value, and whether the answer is the one it must be.

use crate::client::{Calls, Connection};
use crate::limits;
use crate::plan::{Operation, Plan};
use crate::proto::health::HealthCheckRequest;
use crate::proto::kv_client::KvClient;
use crate::proto::{DeleteRangeRequest, PutRequest, RangeRequest};
use bytes::{BufMut, Bytes, BytesMut};

/// A run's operations. Each is a function of the seed, the round and its number, so both endpoints of a comparison
/// get the same ones whatever the order in which the clients take them.
#[derive(Clone, Debug)]
pub struct Workload {
    operation: Operation,
    prefix: Bytes,
    /// Behind the last key of the key space. What the prefix has beyond it, from an earlier load, does not count.
    end: Bytes,
    key_space: u64,
    value_size: usize,
    /// Random bytes, one value longer than the number of places where a value may begin.
    value_pool: Bytes,
    seed: u64,
    /// Whether operation `i` takes key `i`, so that `key_space` operations touch every key once.
    sequential: bool,
    /// The revision at which counts count; 0: the newest.
    revision: i64,
}

/// Why an operation did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum OperationError {
    /// The call failed.
    #[error("{:?}: {}", .0.code(), .0.message())]
    Status(#[from] Box<tonic::Status>),
    /// The answer is not the one that it must be.
    #[error("wrong answer: {0}")]
    WrongAnswer(String),
}

/// What tells the watchers of one round from those of another, and when a put should have started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The round's own number.
    pub nonce: u64,
    /// The intended start, counted from the round's start.
    pub intended_ns: u64,
    /// The put's number in its round.
    pub index: u64,
}

impl Stamp {
    /// Reads the stamp at the beginning of a value. None if the value is too short to have one.
    pub fn of_value(value: &[u8]) -> Option<Self> {
        let (nonce, rest) = value.split_first_chunk::<8>()?;
        let (intended_ns, rest) = rest.split_first_chunk::<8>()?;
        let (index, _) = rest.split_first_chunk::<8>()?;
        let [nonce, intended_ns, index] = [nonce, intended_ns, index].map(|bytes| u64::from_le_bytes(*bytes));
        Some(Self { nonce, intended_ns, index })
    }
}

impl Workload {
    /// The operations of a plan.
    pub fn new(plan: &Plan) -> Self {
        let prefix = Bytes::from(plan.key_prefix.clone());
        // A byte of nought behind the last key makes the first key that is larger.
        let end = behind(&key(&prefix, plan.key_space - 1));
        let value_size = usize::try_from(plan.value_size).expect("a value's size fits the address space");
        let mut pool = BytesMut::with_capacity(limits::VALUE_POOL_BYTES + value_size + 8);
        let mut counter = 0;
        while pool.len() < limits::VALUE_POOL_BYTES + value_size {
            pool.put_u64_le(mix(plan.seed ^ mix(counter)));
            counter += 1;
        }
        Self {
            operation: plan.operation,
            prefix,
            end,
            key_space: plan.key_space,
            value_size,
            value_pool: pool.freeze(),
            seed: plan.seed,
            sequential: false,
            revision: 0,
        }
    }

    /// The puts that fill the key space: `key_space` operations, one for each key.
    pub fn fill(&self) -> Self {
        Self { operation: Operation::Put, sequential: true, ..self.clone() }
    }

    /// Puts under random keys, whatever the load's own operations are.
    pub fn puts(&self) -> Self {
        Self { operation: Operation::Put, ..self.clone() }
    }

    /// The puts of keys that the load's own operations never touch: `count` of them, one for each, with values of
    /// [`limits::RANGE_VALUE_BYTES`].
    pub fn bulk_fill(&self, count: u64) -> Self {
        let mut prefix = BytesMut::from(self.prefix.as_ref());
        // Behind all digits, so it is beyond the end of the key space.
        prefix.put_slice(b"~bulk/");
        let value_size = usize::try_from(limits::RANGE_VALUE_BYTES).expect("it is small");
        let prefix = prefix.freeze();
        let end = behind(&key(&prefix, count - 1));
        Self { prefix, end, key_space: count, value_size, ..self.fill() }
    }

    /// Counts at a revision.
    pub fn at_revision(&self, revision: i64) -> Self {
        Self { revision, ..self.clone() }
    }

    /// What one operation is.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Where the key space begins, and the end behind its last key.
    pub fn bounds(&self) -> (Bytes, Bytes) {
        (self.prefix.clone(), self.end.clone())
    }

    /// The keys between the first one and behind the first `count` of them.
    pub fn first_keys(&self, count: u64) -> (Bytes, Bytes) {
        (key(&self.prefix, 0), behind(&key(&self.prefix, count - 1)))
    }

    /// One key, as a range of its own.
    pub fn one_key(&self, number: u64) -> (Bytes, Bytes) {
        (key(&self.prefix, number), Bytes::new())
    }

    /// Whether a key is the one with this number.
    pub fn is_key(&self, number: u64, key: &[u8]) -> bool {
        let digits = key.strip_prefix(self.prefix.as_ref()).filter(|digits| digits.len() == limits::KEY_DIGITS);
        let value = |digits: &[u8]| {
            digits
                .iter()
                .try_fold(0, |value, digit| digit.is_ascii_digit().then(|| value * 10 + u64::from(digit - b'0')))
        };
        digits.and_then(value) == Some(number)
    }

    /// The number of the key that operation `index` of round `round` takes.
    pub fn key_number(&self, round: u64, index: u64) -> u64 {
        if self.sequential { index % self.key_space } else { self.random(round, index) % self.key_space }
    }

    fn random(&self, round: u64, index: u64) -> u64 {
        mix(self.seed ^ mix(index ^ mix(round)))
    }

    fn value(&self, random: u64, stamp: Option<Stamp>) -> Bytes {
        // The values of a bulk may be longer than those that the pool was made for.
        let places = (self.value_pool.len() - self.value_size) as u64;
        let begin = usize::try_from(random % places).expect("a place in the pool fits the address space");
        let random_bytes = self.value_pool.slice(begin..begin + self.value_size);
        let Some(stamp) = stamp else { return random_bytes };
        let mut value = BytesMut::from(random_bytes.as_ref());
        value[..8].copy_from_slice(&stamp.nonce.to_le_bytes());
        value[8..16].copy_from_slice(&stamp.intended_ns.to_le_bytes());
        value[16..24].copy_from_slice(&stamp.index.to_le_bytes());
        value.freeze()
    }

    /// Does operation `index` of round `round` and checks the answer. Answers the revision of a put.
    pub async fn perform(
        &self,
        calls: &mut Calls,
        round: u64,
        index: u64,
        stamp: Stamp,
    ) -> Result<i64, OperationError> {
        let client = &mut calls.kv;
        let (random, number) = (self.random(round, index), self.key_number(round, index));
        match self.operation {
            Operation::Noop => no_op(calls).await?,
            Operation::Put => return self.put(client, number, self.value(mix(random), None)).await,
            Operation::Watch(_) => return self.put(client, number, self.value(mix(random), Some(stamp))).await,
            Operation::Range { limit, serializable } => self.range(client, number, limit, serializable).await?,
            Operation::Count { serializable, .. } => {
                let count = self.count(client, serializable).await?;
                if count != self.key_space {
                    return Err(wrong(format!("{count} keys counted of {}", self.key_space)));
                }
            }
        }
        Ok(0)
    }

    async fn put(&self, client: &mut KvClient<Connection>, number: u64, value: Bytes) -> Result<i64, OperationError> {
        put(client, key(&self.prefix, number), value).await
    }

    /// Removes the keys that [`Workload::write_beyond`] put, then writes `count` times: new keys within the range that
    /// counts count, and keys that were there before, by turns. Answers the revision before them.
    pub async fn write_beyond(&self, client: &mut KvClient<Connection>, count: u64) -> Result<i64, OperationError> {
        self.remove_new_keys(client).await?;
        let mut before = self.revision(client).await?;
        for number in 0..count {
            let random = mix(self.seed ^ mix(number));
            let key = if number % 2 == 0 { self.new_key(number) } else { key(&self.prefix, random % self.key_space) };
            let revision = put(client, key, self.value(random, None)).await?;
            if number == 0 {
                before = revision - 1;
            }
        }
        Ok(before)
    }

    /// Removes the keys that [`Workload::write_beyond`] put.
    pub async fn remove_new_keys(&self, client: &mut KvClient<Connection>) -> Result<(), OperationError> {
        let request = DeleteRangeRequest { key: self.new_key(0), range_end: self.new_key(limits::KEY_SPACE_MAX - 1) };
        client.delete_range(request).await.map_err(Box::new)?;
        Ok(())
    }

    /// A key between the first two of the key space.
    fn new_key(&self, number: u64) -> Bytes {
        let mut first = BytesMut::from(key(&self.prefix, 0).as_ref());
        first.put_slice(b"/new/");
        key(&first, number)
    }

    /// The server's newest revision.
    pub async fn revision(&self, client: &mut KvClient<Connection>) -> Result<i64, OperationError> {
        let request = RangeRequest { key: key(&self.prefix, 0), count_only: true, ..RangeRequest::default() };
        let header = client.range(request).await.map_err(Box::new)?.into_inner().header;
        header.map(|header| header.revision).ok_or_else(|| wrong("an answer without a header".into()))
    }

    async fn range(
        &self,
        client: &mut KvClient<Connection>,
        number: u64,
        limit: u32,
        serializable: bool,
    ) -> Result<(), OperationError> {
        let range_end = if limit == 1 { Bytes::new() } else { self.end.clone() };
        let key = key(&self.prefix, number);
        let request = RangeRequest { key, range_end, limit: limit.into(), serializable, ..RangeRequest::default() };
        let response = client.range(request).await.map_err(Box::new)?.into_inner();
        let expected = u64::from(limit).min(self.key_space - number);
        if response.kvs.len() as u64 != expected {
            return Err(wrong(format!("{} keys in the range, not {expected}", response.kvs.len())));
        }
        Ok(())
    }

    /// How many keys of the key space are there.
    pub async fn count(&self, client: &mut KvClient<Connection>, serializable: bool) -> Result<u64, OperationError> {
        let (key, range_end) = self.bounds();
        let revision = self.revision;
        let request =
            RangeRequest { key, range_end, count_only: true, serializable, revision, ..RangeRequest::default() };
        let count = client.range(request).await.map_err(Box::new)?.into_inner().count;
        u64::try_from(count).map_err(|_| wrong(format!("a count of {count}")))
    }
}

async fn put(client: &mut KvClient<Connection>, key: Bytes, value: Bytes) -> Result<i64, OperationError> {
    let response = client.put(PutRequest { key, value, lease: 0 }).await.map_err(Box::new)?.into_inner();
    response.header.map(|header| header.revision).ok_or_else(|| wrong("an answer without a header".into()))
}

/// The smallest key that is larger.
fn behind(key: &[u8]) -> Bytes {
    let mut end = BytesMut::from(key);
    end.put_u8(0);
    end.freeze()
}

/// The call that does nothing: the health of the server as a whole. What it takes is what calls and answers take.
pub async fn no_op(calls: &mut Calls) -> Result<(), OperationError> {
    const SERVING: i32 = 1;
    let response = calls.health.check(HealthCheckRequest::default()).await.map_err(Box::new)?.into_inner();
    if response.status != SERVING {
        return Err(wrong(format!("a health of {} and not {SERVING}", response.status)));
    }
    Ok(())
}

/// The key with a number.
fn key(prefix: &[u8], number: u64) -> Bytes {
    assert!(number < limits::KEY_SPACE_MAX, "the number has more digits than a key");
    let mut key = BytesMut::with_capacity(prefix.len() + limits::KEY_DIGITS);
    key.put_slice(prefix);
    let mut digits = [b'0'; limits::KEY_DIGITS];
    let mut rest = number;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + u8::try_from(rest % 10).expect("a remainder by ten is a digit");
        rest /= 10;
    }
    key.put_slice(&digits);
    key.freeze()
}

fn wrong(what: String) -> OperationError {
    OperationError::WrongAnswer(what)
}

/// SplitMix64's finalizer after one step of its counter: a fixed map from a number to one that looks random.
pub fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(value_size: u32) -> Workload {
        Workload::new(&Plan { value_size, seed: 7, key_prefix: "bench/".into(), key_space: 1_000, ..Plan::example() })
    }

    #[test]
    fn keys_are_ordered_as_their_numbers_and_lie_within_the_bounds() {
        let workload = workload(10);
        let (first, end) = workload.bounds();
        assert_eq!(key(b"bench/", 42), "bench/0000000042");
        assert!(key(b"bench/", 9) < key(b"bench/", 10));
        assert!(workload.is_key(42, b"bench/0000000042") && !workload.is_key(43, b"bench/0000000042"));
        assert!(!workload.is_key(42, b"bench/42") && !workload.is_key(42, b"bench/000000004x"));
        assert!(first < key(&first, 0) && key(&first, 999) < end && end < key(&first, 1_000));
    }

    #[test]
    fn keys_that_are_put_beside_the_load_s_own_lie_where_they_must() {
        let workload = workload(10);
        let (_, end) = workload.bounds();
        let new = workload.new_key(7);
        assert!(key(b"bench/", 0) < new && new < key(b"bench/", 1));
        let bulk = workload.bulk_fill(50);
        assert!(bulk.bounds().0 > end && key(&bulk.prefix, 49) < bulk.bounds().1);
        assert_eq!((bulk.key_number(3, 49), bulk.value(1, None).len()), (49, 1024));
        let places = limits::VALUE_POOL_BYTES as u64;
        for last in places - 1100..places {
            assert_eq!(bulk.value(last, None).len(), 1024, "place {last}");
        }
    }

    #[test]
    fn values_have_the_size_and_a_stamp_comes_back_out_of_one() {
        let workload = workload(100);
        let stamp = Stamp { nonce: 3, intended_ns: 9_000_000_000, index: 77 };
        assert_eq!(workload.value(u64::MAX, None).len(), 100);
        let value = workload.value(5, Some(stamp));
        assert_eq!((value.len(), Stamp::of_value(&value)), (100, Some(stamp)));
        assert_eq!(Stamp::of_value(&value[..23]), None);
    }

    #[test]
    fn values_differ_from_one_operation_to_the_next() {
        let workload = workload(32);
        assert_ne!(workload.value(mix(1), None), workload.value(mix(2), None));
    }
}
