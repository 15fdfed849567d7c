//! The terminal: a screen of its own while the view is live, and the old one back afterwards, also when the program panics.

use std::{
    env,
    io::{self, IsTerminal, Write, stdout},
};

/// The alternate screen, no cursor, and lines that end at the margin.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

pub(crate) struct Screen {
    live: bool,
}

impl Screen {
    /// Live if it is `wanted` and standard output is a terminal that knows escape codes.
    pub(crate) fn enter(wanted: bool) -> io::Result<Self> {
        let dumb = env::var_os("TERM").is_none_or(|terminal| terminal == "dumb");
        let live = wanted && !dumb && stdout().is_terminal();
        // Before the codes: what they change is undone also if writing them fails half-way.
        let screen = Self { live };
        if live {
            write(ENTER)?;
        }
        Ok(screen)
    }

    pub(crate) fn is_live(&self) -> bool {
        self.live
    }

    /// In place of what was there.
    pub(crate) fn show(&mut self, lines: &[String]) -> io::Result<()> {
        write(&frame(lines))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.live {
            let _ = leave();
        }
    }
}

/// In one piece, so that no half of it is seen. No line feed behind the last line, which would scroll.
fn frame(lines: &[String]) -> String {
    let lines: Vec<String> = lines.iter().map(|line| format!("{line}\x1b[K")).collect();
    format!("\x1b[H{}\x1b[J", lines.join("\r\n"))
}

pub(crate) fn leave() -> io::Result<()> {
    write(LEAVE)
}

fn write(codes: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(codes.as_bytes())?;
    out.flush()
}

/// Lines of the terminal; those of the oldest ones if it doesn't tell.
pub(crate) fn rows() -> usize {
    const OLDEST: usize = 24;
    #[cfg(unix)]
    let rows = rustix::termios::tcgetwinsize(stdout()).map_or(0, |size| size.ws_row.into());
    #[cfg(not(unix))]
    let rows = 0;
    if rows == 0 { OLDEST } else { rows }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_overwrites_the_last_one() {
        assert_eq!(frame(&["a".into(), "bc".into()]), "\x1b[Ha\x1b[K\r\nbc\x1b[K\x1b[J");
    }

    /// Each mode that is switched on is switched off.
    #[test]
    fn what_is_entered_is_left() {
        let modes = |codes: &str| {
            let mut modes: Vec<_> =
                codes.split('\x1b').skip(1).map(|code| (code[..code.len() - 1].to_owned(), code.ends_with('h'))).collect();
            modes.sort_unstable();
            modes
        };
        let inverted: Vec<_> = modes(ENTER).into_iter().map(|(mode, on)| (mode, !on)).collect();
        assert_eq!(modes(LEAVE), inverted);
    }
}
