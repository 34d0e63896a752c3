//! A step that is undone if the code after it fails or panics.

/// A value, and a function that is called with it when this is dropped.
#[must_use = "if dropped, the step is undone"]
pub(crate) struct Undo<T, F: FnOnce(T)>(Option<(T, F)>);

impl<T, F: FnOnce(T)> Undo<T, F> {
    pub(crate) fn new(value: T, undo: F) -> Self {
        Self(Some((value, undo)))
    }

    pub(crate) fn get(&self) -> &T {
        &self.0.as_ref().expect("it is there until this is dropped").0
    }

    /// Returns the value. Nothing is undone.
    pub(crate) fn keep(mut self) -> T {
        self.0.take().expect("it is there until this is dropped").0
    }
}

impl<T, F: FnOnce(T)> Drop for Undo<T, F> {
    fn drop(&mut self) {
        if let Some((value, undo)) = self.0.take() {
            undo(value);
        }
    }
}
