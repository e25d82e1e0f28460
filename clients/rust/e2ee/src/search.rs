//! Search tokens: keyed hashes of words, by which the service finds messages that it cannot read.
//!
//! Equal tokens show the service which messages of a conversation share a word, so a person asks
//! for them. `docs/encryption.md` has the rule and the leak.

use std::collections::HashSet;

use unicode_normalization::UnicodeNormalization;
use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

use crate::{
    EpochKey,
    bytes::{hex, hkdf},
};

/// The most tokens that the service takes with a message.
pub const MAX_MESSAGE_TOKENS: usize = 64;
/// The most tokens that the service takes in a search.
pub const MAX_SEARCH_TOKENS: usize = 16;

const TOKEN_BYTES: usize = 16;

/// The words of a text in the form in which they are compared, each once, in their order.
///
/// A word is a run of letters, marks and digits. Scripts that put no spaces between words give
/// each pair of neighbours as a word.
#[must_use]
pub fn words(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut run: Vec<char> = Vec::new();
    for letter in fold(text).chars().chain([' ']) {
        let is_word = is_of_word(letter);
        let is_other = |last: &char| !is_word || is_unspaced(*last) != is_unspaced(letter);
        if run.last().is_some_and(is_other) {
            take(&mut found, &run);
            run.clear();
        }
        if is_word {
            run.push(letter);
        }
    }
    let mut seen = HashSet::new();
    found.retain(|word| seen.insert(word.clone()));
    found
}

fn take(found: &mut Vec<String>, run: &[char]) {
    if is_unspaced(run[0]) && run.len() > 1 {
        found.extend(run.windows(2).map(|pair| pair.iter().collect::<String>()));
    } else {
        found.push(run.iter().collect());
    }
}

/// Upper case and then lower case by code point: the languages of the clients agree on it, and on
/// nothing closer to Unicode's case folding.
fn fold(text: &str) -> String {
    let upper = text.nfkc().flat_map(char::to_uppercase);
    upper.flat_map(char::to_lowercase).nfkc().collect()
}

fn is_of_word(letter: char) -> bool {
    matches!(
        letter.general_category_group(),
        GeneralCategoryGroup::Letter | GeneralCategoryGroup::Mark | GeneralCategoryGroup::Number
    )
}

/// Thai and Lao, Myanmar, Khmer, kana, and Han.
const fn is_unspaced(letter: char) -> bool {
    matches!(letter,
        '\u{e00}'..='\u{eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}'
        | '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}'
        | '\u{20000}'..='\u{3ffff}')
}

/// The tokens of words in the epoch of `key`, as 32 digits of hex. None for an agent that is
/// `addressed`: it holds no more than its lane.
#[must_use]
pub fn tokens(key: &EpochKey, words: &[String]) -> Option<Vec<String>> {
    let search = key.search()?;
    let token = |word: &String| hex(*hkdf::<TOKEN_BYTES>(search.expose(), &[], word.as_bytes()));
    Some(words.iter().map(token).collect())
}
