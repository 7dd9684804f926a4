//! Durations as Go writes them: `1h30m`, `300ms`, `1.5s`.

use std::time::Duration;

/// Reads a duration; nothing when the text is none, is negative, or is too long to count in nanoseconds.
pub(super) fn parse(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total_ns: u128 = 0;
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(number_end);
        let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        total_ns = total_ns.checked_add(part_ns(number, unit_ns(unit)?)?)?;
        rest = tail;
    }
    // Go counts in signed 64-bit nanoseconds, some 292 years.
    i64::try_from(total_ns).ok().and_then(|ns| u64::try_from(ns).ok()).map(Duration::from_nanos)
}

fn unit_ns(unit: &str) -> Option<u128> {
    match unit {
        "ns" => Some(1),
        "us" | "µs" | "μs" => Some(1_000),
        "ms" => Some(1_000_000),
        "s" => Some(1_000_000_000),
        "m" => Some(60_000_000_000),
        "h" => Some(3_600_000_000_000),
        _ => None,
    }
}

/// `number` of a unit; digits beyond a nanosecond do not count.
fn part_ns(number: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut ns = whole.checked_mul(unit)?;
    let mut scale = unit;
    for digit in fraction.bytes() {
        scale /= 10;
        ns += u128::from(digit - b'0') * scale;
    }
    Some(ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, ns) in [
            ("0", 0),
            ("1h", 3_600_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("300ms", 300_000_000),
            ("1.5s", 1_500_000_000),
            (".5s", 500_000_000),
            ("2.s", 2_000_000_000),
            ("+5us", 5_000),
            ("7µs", 7_000),
            ("1ns", 1),
        ] {
            assert_eq!(parse(text), Some(Duration::from_nanos(ns)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_none() {
        for text in [
            "",
            "1",
            "h",
            "1d",
            "-1h",
            "1.2.3s",
            ".s",
            "1 h",
            "9999999999h",
            "99999999999999999999999999999999999999999s",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
