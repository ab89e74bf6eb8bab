//! The pages in use: a bitmap that the writer owns. The lowest free page is allocated first, so
//! that a store shrinks towards its beginning.

use crate::backend::PageNo;

/// The pages in use, as the writer sees them.
#[derive(Debug, Default)]
pub(crate) struct Allocator {
    /// Bit `p % 64` of word `p / 64` is set if page `p` is in use.
    words: Vec<u64>,
    /// No word before this one has a free page.
    first_open: usize,
}

impl Allocator {
    /// Creates an allocator with exactly these pages in use.
    pub(crate) fn new(in_use: &[PageNo]) -> Self {
        let mut allocator = Self::default();
        for &page in in_use {
            allocator.take(page);
        }
        allocator
    }

    /// Takes the lowest free page. Returns `None` if there are no more numbers.
    pub(crate) fn allocate(&mut self) -> Option<PageNo> {
        while self.words.get(self.first_open).is_some_and(|&word| word == u64::MAX) {
            self.first_open += 1;
        }
        let bit = self.words.get(self.first_open).map_or(0, |word| word.trailing_ones() as usize);
        let page = PageNo(u32::try_from(self.first_open * 64 + bit).ok()?);
        self.take(page);
        Some(page)
    }

    /// Marks `page` as in use.
    pub(crate) fn take(&mut self, page: PageNo) {
        let word = page.0 as usize / 64;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (page.0 % 64);
    }

    /// Marks `page` as free.
    pub(crate) fn free(&mut self, page: PageNo) {
        let word = page.0 as usize / 64;
        if let Some(bits) = self.words.get_mut(word) {
            *bits &= !(1 << (page.0 % 64));
            self.first_open = self.first_open.min(word);
        }
    }
}
