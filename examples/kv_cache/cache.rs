//! The cache: one allocation per sequence, whose pages are committed as tokens come and decommitted as they go.
//!
//! Everything goes through the binding that the cache was made with. What is selected, retired or removed meanwhile does
//! not change which memory a sequence has.

use std::ops::Range;
use std::ptr;

use liveslot::{
    AllocationReleaseOutcome, BindingError, BoundSharedMapping, BoundSharedPrefix, BoundVirtualBacking, MemoryBinding, OwningAllocation,
    OwningReleaseError,
};

use crate::shape::Shape;

/// A step of the cache failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CacheError {
    #[error("the allocator offers no {0} on this system")]
    NotOffered(&'static str),
    #[error("sequence {sequence} has room for {room} tokens besides its prompt")]
    Full { sequence: usize, room: usize },
    #[error("token {token} of sequence {sequence} is not what was written")]
    Contents { sequence: usize, token: usize },
    #[error("{what} of sequence {sequence} gave {actual} bytes back instead of {expected}")]
    GaveBack { what: &'static str, sequence: usize, actual: u64, expected: u64 },
    #[error("a sequence was not released: {0:?}")]
    Incomplete(AllocationReleaseOutcome),
    #[error("the kernel's account can't be read: {0}")]
    Unaccountable(#[from] std::io::Error),
    #[error(transparent)]
    Binding(#[from] BindingError),
    #[error(transparent)]
    Release(#[from] OwningReleaseError),
}

/// The tokens of one conversation. Sequences are numbered from 1; 0 is the prompt.
#[derive(Debug)]
pub(crate) struct Sequence {
    number: usize,
    memory: OwningAllocation,
    /// Those behind the prompt.
    own_tokens: usize,
}

impl Sequence {
    pub(crate) fn own_tokens(&self) -> usize {
        self.own_tokens
    }

    pub(crate) fn addresses(&self) -> Range<usize> {
        let start = self.memory.as_ptr().addr().get();
        start..start + self.memory.len()
    }
}

#[derive(Debug)]
pub(crate) struct Cache {
    shape: Shape,
    binding: MemoryBinding,
    backing: BoundVirtualBacking,
    mapping: BoundSharedMapping,
    prompt: BoundSharedPrefix,
}

impl Cache {
    /// Makes the prompt, which takes its memory at once.
    pub(crate) fn new(binding: MemoryBinding, shape: Shape) -> Result<Self, CacheError> {
        let backing = binding.virtual_backing()?.ok_or(CacheError::NotOffered("virtual backing"))?;
        let mapping = binding.shared_mapping()?.ok_or(CacheError::NotOffered("shared mapping"))?;
        let prompt = mapping.create_shared_prefix(shape.prompt_bytes)?;
        let start = ptr::with_exposed_provenance_mut::<u8>(prompt.device_ptr() as usize);
        for token in 0..shape.prompt_tokens {
            // SAFETY: the prefix is mapped there, accessible, as long as this; nobody else knows of it yet.
            unsafe { start.add(shape.prompt_token(token)).write_bytes(contents(0, token), shape.token_bytes) };
        }
        Ok(Self { shape, binding, backing, mapping, prompt })
    }

    /// Reserves addresses for a sequence of the longest kind, and maps the prompt at their beginning.
    pub(crate) fn begin(&self, number: usize) -> Result<Sequence, CacheError> {
        let memory = self.binding.allocate_owning(self.shape.reserved_bytes, self.shape.page_bytes)?;
        match self.mapping.commit_shared_prefix(&self.prompt, memory.bound(), 0) {
            Ok(_) => Ok(Sequence { number, memory, own_tokens: 0 }),
            Err(error) => {
                memory.release_now()?;
                Err(error.into())
            }
        }
    }

    /// Adds one token. A page is committed when the first token reaches into it.
    pub(crate) fn append(&self, sequence: &mut Sequence) -> Result<(), CacheError> {
        let Sequence { number, ref memory, own_tokens: token } = *sequence;
        if token == self.shape.room {
            return Err(CacheError::Full { sequence: number, room: self.shape.room });
        }
        let offset = self.shape.own_token(token);
        self.backing.commit_allocation_range(memory.bound(), offset, self.shape.token_bytes)?;
        let view = memory.view(offset, self.shape.token_bytes)?;
        self.binding.with_view(view.view(), |view| {
            // SAFETY: committed above, and only whoever has the sequence writes to it or decommits it.
            unsafe { view.as_ptr().write_bytes(contents(number, token), view.len()) }
        })?;
        sequence.own_tokens += 1;
        Ok(())
    }

    /// Keeps the first `tokens` own tokens, and decommits the pages that none of these reaches into.
    pub(crate) fn truncate(&self, sequence: &mut Sequence, tokens: usize) -> Result<(), CacheError> {
        let tokens = tokens.min(sequence.own_tokens);
        let freed = self.shape.freed(sequence.own_tokens, tokens);
        let actual = self.backing.decommit_allocation_range(sequence.memory.bound(), freed.start, freed.len())?;
        sequence.own_tokens = tokens;
        gave_back("decommit", sequence.number, actual, freed.len())
    }

    /// Gives all of it back: own pages, mapping of the prompt, addresses.
    pub(crate) fn end(&self, sequence: Sequence) -> Result<(), CacheError> {
        let Sequence { number, memory, own_tokens } = sequence;
        let outcome = memory.release_now()?;
        if !outcome.is_complete() {
            return Err(CacheError::Incomplete(outcome));
        }
        gave_back("release", number, outcome.unmapped_bytes(), self.shape.own_bytes(own_tokens))
    }

    /// Reads every token of a sequence, and returns how many these are. Afterwards the prompt's pages are resident there too.
    pub(crate) fn read(&self, sequence: &Sequence) -> Result<usize, CacheError> {
        let prompt = (0..self.shape.prompt_tokens).map(|token| (0, token, self.shape.prompt_token(token)));
        let own = (0..sequence.own_tokens).map(|token| (sequence.number, token, self.shape.own_token(token)));
        for (writer, token, offset) in prompt.chain(own) {
            let view = sequence.memory.view(offset, self.shape.token_bytes)?;
            let right = self.binding.with_view(view.view(), |view| {
                // SAFETY: the pages of the prompt and of own tokens are committed, and nobody writes there while the sequence is borrowed.
                let bytes = unsafe { std::slice::from_raw_parts(view.as_ptr().as_ptr(), view.len()) };
                bytes.iter().all(|byte| *byte == contents(writer, token))
            })?;
            if !right {
                return Err(CacheError::Contents { sequence: sequence.number, token });
            }
        }
        Ok(self.shape.prompt_tokens + sequence.own_tokens)
    }

    /// What the library says is committed of a sequence, the prompt included, in bytes.
    pub(crate) fn committed_bytes(&self, sequence: &Sequence) -> Result<usize, CacheError> {
        Ok(self.backing.allocation_committed_bytes(sequence.memory.bound())?)
    }

    /// Where the prompt is mapped for itself.
    pub(crate) fn prompt_addresses(&self) -> Range<usize> {
        let start = self.prompt.device_ptr() as usize;
        start..start + self.prompt.mapped_bytes()
    }
}

fn gave_back(what: &'static str, sequence: usize, actual: u64, expected: usize) -> Result<(), CacheError> {
    let expected = expected as u64;
    if actual == expected { Ok(()) } else { Err(CacheError::GaveBack { what, sequence, actual, expected }) }
}

/// What each byte of a token is: never 0, which is what fresh pages hold.
const fn contents(sequence: usize, token: usize) -> u8 {
    (1 + (sequence * 31 + token) % 255) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use liveslot::{BindingRegistry, DeviceKey, VirtualMemory};
    use std::sync::Arc;

    fn cache(token_bytes: usize) -> Cache {
        let memory = VirtualMemory::default();
        let shape = Shape::new(memory.page_bytes(), token_bytes, 3, 5, 8).unwrap();
        let registry = BindingRegistry::new().unwrap();
        let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(())).unwrap();
        let authority = registry.register_authority(DeviceKey::HOST, Arc::new(())).unwrap();
        registry.register_allocator(context, authority, Arc::new(memory)).unwrap();
        Cache::new(registry.bind(DeviceKey::HOST).unwrap(), shape).unwrap()
    }

    #[test]
    fn tokens_come_and_go_with_their_pages() {
        for token_bytes in [1, 1000, 4096, 5000] {
            let cache = cache(token_bytes);
            let mut sequence = cache.begin(1).unwrap();
            let committed = |sequence: &Sequence| cache.committed_bytes(sequence).unwrap() - cache.shape.prompt_bytes;
            assert_eq!(committed(&sequence), 0);
            for tokens in 1..=5 {
                cache.append(&mut sequence).unwrap();
                assert_eq!(committed(&sequence), cache.shape.own_bytes(tokens));
            }
            assert!(matches!(cache.append(&mut sequence), Err(CacheError::Full { sequence: 1, room: 5 })));
            cache.truncate(&mut sequence, 2).unwrap();
            assert_eq!(committed(&sequence), cache.shape.own_bytes(2));
            cache.append(&mut sequence).unwrap();
            assert_eq!(cache.read(&sequence).unwrap(), 3 + 3);
            cache.end(sequence).unwrap();
        }
    }

    #[test]
    fn each_sequence_has_its_own_tokens_behind_the_same_prompt() {
        let cache = cache(700);
        let mut sequences = [cache.begin(1).unwrap(), cache.begin(2).unwrap()];
        for _ in 0..5 {
            sequences.iter_mut().for_each(|sequence| cache.append(sequence).unwrap());
        }
        for sequence in sequences {
            assert_eq!(cache.read(&sequence).unwrap(), 8);
            cache.end(sequence).unwrap();
        }
    }

    #[test]
    fn a_sequence_that_is_being_read_does_not_end() {
        let cache = cache(700);
        let sequence = cache.begin(1).unwrap();
        let view = sequence.memory.view(0, 700).unwrap();
        let Err(CacheError::Release(refused)) = cache.end(sequence) else { panic!("the view is still there") };
        assert!(matches!(refused.error(), BindingError::OutstandingViews { views: 1, .. }));
        let (_, memory) = refused.into_parts();
        drop(view);
        assert!(memory.release_now().unwrap().is_complete());
    }
}
