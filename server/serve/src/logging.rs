//! Log lines in the shape that etcd's operators and their collectors know: one JSON object a line with `level`, `ts`,
//! `caller`, `msg` and the event's fields.

use std::fmt::{self, Write as _};

use crate::config::LogLevel;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Starts logging to standard error. A second call changes nothing.
pub fn start(level: LogLevel) {
    let level = match level {
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Info => Level::INFO,
        LogLevel::Warn => Level::WARN,
        LogLevel::Error => Level::ERROR,
    };
    let subscriber =
        tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).event_format(ZapFormat).finish();
    let _ = tracing::subscriber::set_global_default(subscriber);
}

struct ZapFormat;

impl<S, N> FormatEvent<S, N> for ZapFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let metadata = event.metadata();
        let level = match *metadata.level() {
            Level::ERROR => "error",
            Level::WARN => "warn",
            Level::INFO => "info",
            Level::DEBUG | Level::TRACE => "debug",
        };
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let file = metadata.file().unwrap_or("unknown");
        let caller = file.rsplit_once("/src/").map_or(file, |(_, tail)| tail);
        write!(writer, "{{\"level\":\"{level}\",\"ts\":\"{time}\",\"caller\":")?;
        write_json_string(&mut writer, &format!("{caller}:{}", metadata.line().unwrap_or(0)))?;
        let mut fields = Fields::default();
        event.record(&mut fields);
        writer.write_str(",\"msg\":")?;
        write_json_string(&mut writer, &fields.message)?;
        writer.write_str(&fields.others)?;
        writer.write_str("}\n")
    }
}

#[derive(Default)]
struct Fields {
    message: String,
    others: String,
}

impl Fields {
    fn add(&mut self, field: &Field, value: &str, quoted: bool) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
            return;
        }
        let others = &mut self.others;
        let outcome = write!(others, ",\"{}\":", field.name().replace('_', "-"))
            .and_then(|()| if quoted { write_json_string(others, value) } else { others.write_str(value) });
        debug_assert!(outcome.is_ok(), "writing to a string does not fail");
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, &format!("{value:?}"), true);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value, true);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, &value.to_string(), false);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, &value.to_string(), false);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, if value { "true" } else { "false" }, false);
    }
}

fn write_json_string(writer: &mut impl fmt::Write, text: &str) -> fmt::Result {
    writer.write_char('"')?;
    for character in text.chars() {
        match character {
            '"' => writer.write_str("\\\"")?,
            '\\' => writer.write_str("\\\\")?,
            '\n' => writer.write_str("\\n")?,
            '\r' => writer.write_str("\\r")?,
            '\t' => writer.write_str("\\t")?,
            control if control.is_control() => write!(writer, "\\u{:04x}", u32::from(control))?,
            other => writer.write_char(other)?,
        }
    }
    writer.write_char('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped_as_json_wants() {
        let mut out = String::new();
        write_json_string(&mut out, "a\"b\\c\nd\u{1}é").unwrap();
        assert_eq!(out, "\"a\\\"b\\\\c\\nd\\u0001é\"");
    }
}
