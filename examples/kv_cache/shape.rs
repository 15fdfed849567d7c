//! Where things lie in a sequence's address space.
//!
//! ```text
//! 0          prompt         prompt_bytes     own tokens                         room for more        guard
//! ├─ the shared prefix's pages ──┼─ committed as tokens come ──┼─ no memory, no access ──────┼─ one page ─┤
//! ```
//!
//! Only whole pages can be shared, so a sequence's own tokens begin at a page's start. The guard is never committed: who
//! writes past the last token is stopped there, instead of changing what lies behind.

use std::ops::Range;

/// The sizes of one run cannot be.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ShapeError {
    #[error("a context of {context} tokens has no room for a prompt of {prompt} and {tokens} more; ask for less or raise --context")]
    ContextTooShort { context: usize, prompt: usize, tokens: usize },
    #[error("a sequence of {context} tokens at {token_bytes} bytes does not fit into an address space")]
    TooLarge { context: usize, token_bytes: usize },
    #[error("{needed} KiB would be resident at once, and {available} KiB are available; ask for less")]
    TooMuch { needed: u64, available: u64 },
}

/// Sizes in bytes, counts in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) page_bytes: usize,
    pub(crate) token_bytes: usize,
    pub(crate) prompt_tokens: usize,
    /// The prompt in whole pages.
    pub(crate) prompt_bytes: usize,
    /// The tokens that a sequence has room for behind its prompt.
    pub(crate) room: usize,
    /// The address space of a sequence.
    pub(crate) reserved_bytes: usize,
}

impl Shape {
    /// Sequences of at most `context` tokens, of which the first `prompt_tokens` are shared and `tokens` more will come.
    pub(crate) fn new(
        page_bytes: usize,
        token_bytes: usize,
        prompt_tokens: usize,
        tokens: usize,
        context: usize,
    ) -> Result<Self, ShapeError> {
        let too_short = ShapeError::ContextTooShort { context, prompt: prompt_tokens, tokens };
        let room = context.checked_sub(prompt_tokens).filter(|room| *room >= tokens).ok_or(too_short)?;
        let pages = |tokens: usize| tokens.checked_mul(token_bytes)?.checked_next_multiple_of(page_bytes);
        let sizes = || {
            let prompt_bytes = pages(prompt_tokens)?;
            let reserved_bytes = prompt_bytes.checked_add(pages(room)?)?.checked_add(page_bytes)?;
            Some((prompt_bytes, reserved_bytes))
        };
        let (prompt_bytes, reserved_bytes) = sizes().ok_or(ShapeError::TooLarge { context, token_bytes })?;
        Ok(Self { page_bytes, token_bytes, prompt_tokens, prompt_bytes, room, reserved_bytes })
    }

    /// The place of a token of the prompt, in each sequence and in the shared prefix.
    pub(crate) const fn prompt_token(&self, index: usize) -> usize {
        index * self.token_bytes
    }

    /// The place of one of a sequence's own tokens, the first being 0.
    pub(crate) const fn own_token(&self, index: usize) -> usize {
        self.prompt_bytes + index * self.token_bytes
    }

    /// What `tokens` own tokens take, in whole pages.
    pub(crate) const fn own_bytes(&self, tokens: usize) -> usize {
        (tokens * self.token_bytes).next_multiple_of(self.page_bytes)
    }

    /// The pages that are not needed any more when `before` own tokens become `after`.
    pub(crate) const fn freed(&self, before: usize, after: usize) -> Range<usize> {
        self.prompt_bytes + self.own_bytes(after)..self.prompt_bytes + self.own_bytes(before)
    }

    /// Refuses what the machine does not have, before the kernel would end the process for it.
    pub(crate) fn check_memory(&self, sequences: usize, tokens: usize, available: u64) -> Result<(), ShapeError> {
        let needed = self.prompt_bytes as u128 + sequences as u128 * self.own_bytes(tokens) as u128;
        if needed <= u128::from(available) {
            return Ok(());
        }
        let needed = u64::try_from(needed / 1024).unwrap_or(u64::MAX);
        Err(ShapeError::TooMuch { needed, available: available / 1024 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    #[test]
    fn own_tokens_begin_at_a_page_and_the_guard_comes_last() {
        let shape = Shape::new(PAGE, 1000, 5, 10, 25).unwrap();
        assert_eq!((shape.prompt_bytes, shape.room), (2 * PAGE, 20));
        assert_eq!(shape.reserved_bytes, 2 * PAGE + 5 * PAGE + PAGE);
        assert_eq!((shape.prompt_token(2), shape.own_token(0), shape.own_token(3)), (2000, 2 * PAGE, 2 * PAGE + 3000));
    }

    #[test]
    fn a_page_is_freed_when_no_token_is_left_in_it() {
        let shape = Shape::new(PAGE, 1000, 1, 9, 10).unwrap();
        assert_eq!(shape.own_bytes(0), 0);
        assert_eq!((shape.own_bytes(4), shape.own_bytes(5)), (PAGE, 2 * PAGE));
        assert!(shape.freed(9, 9).is_empty());
        assert!(shape.freed(8, 6).is_empty(), "token 6 begins in the page that tokens 6 and 7 are in");
        assert_eq!(shape.freed(9, 4), 2 * PAGE..4 * PAGE, "tokens 4 to 8 leave two pages");
        assert_eq!(shape.freed(9, 0), PAGE..4 * PAGE);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert_eq!(Shape::new(PAGE, 1, 5, 6, 10), Err(ShapeError::ContextTooShort { context: 10, prompt: 5, tokens: 6 }));
        assert_eq!(Shape::new(PAGE, 1, 11, 0, 10), Err(ShapeError::ContextTooShort { context: 10, prompt: 11, tokens: 0 }));
        let context = usize::MAX / 2;
        assert_eq!(Shape::new(PAGE, 3, 1, 1, context), Err(ShapeError::TooLarge { context, token_bytes: 3 }));
        let shape = Shape::new(PAGE, PAGE, 1, 2, 3).unwrap();
        let needed = 1 + 10 * 2;
        assert_eq!(shape.check_memory(10, 2, needed * PAGE as u64), Ok(()));
        let refused = Err(ShapeError::TooMuch { needed: needed * 4, available: needed * 4 - 1 });
        assert_eq!(shape.check_memory(10, 2, needed * PAGE as u64 - 1), refused);
    }
}
