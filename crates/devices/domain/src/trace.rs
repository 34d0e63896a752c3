//! A span of `tracing` for each operation, at level TRACE. Without the feature `tracing` there is
//! no code.

/// A span that is entered until this is dropped.
#[must_use]
#[cfg(feature = "tracing")]
pub(crate) struct Span(tracing::span::EnteredSpan);

#[must_use]
#[cfg(not(feature = "tracing"))]
pub(crate) struct Span;

/// Enters a span with this name. Fields after the `;` are recorded later, by [`Span::tell`].
macro_rules! span {
    ($name:literal, $($field:ident = $value:expr),* $(; $($later:ident),*)?) => {{
        #[cfg(feature = "tracing")]
        {
            $crate::trace::Span::enter(tracing::trace_span!(
                target: "longshore_domain",
                $name,
                $($field = ?$value,)*
                $($($later = tracing::field::Empty,)*)?
            ))
        }
        #[cfg(not(feature = "tracing"))]
        {
            $(let _ = &$value;)*
            $crate::trace::Span
        }
    }};
}
pub(crate) use span;

impl Span {
    #[cfg(feature = "tracing")]
    #[inline(always)]
    pub(crate) fn enter(span: tracing::Span) -> Self {
        Self(span.entered())
    }

    /// Records the value of a field.
    #[inline(always)]
    #[cfg_attr(not(feature = "tracing"), expect(clippy::unused_self, reason = "there is no span"))]
    pub(crate) fn tell(&self, field: &'static str, value: u64) {
        #[cfg(feature = "tracing")]
        self.0.record(field, value);
        #[cfg(not(feature = "tracing"))]
        let _ = (field, value);
    }
}
