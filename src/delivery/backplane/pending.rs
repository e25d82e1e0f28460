//! A queue whose items stay until they are handled.

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Items that wait for one consumer. Each stays until the consumer has handled it, because a panic
/// of the loops beside the consumer starts all of them again.
pub struct Pending<T> {
    items: Mutex<Vec<T>>,
    notify: Notify,
}

impl<T> Default for Pending<T> {
    fn default() -> Self {
        Pending {
            items: Mutex::default(),
            notify: Notify::new(),
        }
    }
}

impl<T: Clone> Pending<T> {
    /// Adds items.
    pub fn extend(&self, items: impl IntoIterator<Item = T>) {
        self.items.lock().extend(items);
        self.notify.notify_one();
    }

    /// Waits for items, and copies all of them.
    pub async fn wait(&self) -> Vec<T> {
        loop {
            let items = self.items.lock().clone();
            if !items.is_empty() {
                return items;
            }
            self.notify.notified().await;
        }
    }

    /// Removes the oldest `count` items, which are handled.
    pub fn remove(&self, count: usize) {
        self.items.lock().drain(..count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_item_stays_until_it_is_handled() {
        let pending = Pending::default();
        pending.extend([1, 2]);
        // The consumer panics after this line.
        assert_eq!(pending.wait().await, [1, 2]);
        pending.extend([3]);
        let copied = pending.wait().await;
        assert_eq!(copied, [1, 2, 3]);
        pending.extend([4]);
        pending.remove(copied.len());
        assert_eq!(pending.wait().await, [4]);
    }
}
