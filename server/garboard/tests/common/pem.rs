//! Certificates and keys as files have them.

/// DER in PEM's clothes.
pub fn pem(label: &str, der: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits: Vec<u8> = der
        .chunks(3)
        .flat_map(|three| {
            let bits = three.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
            let digit = move |at: usize| DIGITS[(bits >> (18 - 6 * at)) as usize & 63];
            (0..4).map(move |at| if at <= three.len() { digit(at) } else { b'=' })
        })
        .collect();
    let lines: Vec<&str> = digits.chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}
