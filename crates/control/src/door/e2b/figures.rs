//! What a sandbox uses, measured: a share of the processor is the difference of two readings.

use std::time::Duration;

use super::envd::Figures;
use crate::sandbox::Sandbox;
use crate::{App, Error};

/// Between the two readings of the processor's account.
const BETWEEN: Duration = Duration::from_millis(50);

pub async fn figures(app: &App, sandbox: &Sandbox) -> Result<Figures, Error> {
    let provider = app.provider(&sandbox.provider)?;
    let handle = sandbox.handle();
    let first = provider.usage(&handle).await?;
    let began = tokio::time::Instant::now();
    tokio::time::sleep(BETWEEN).await;
    let second = provider.usage(&handle).await?;
    let elapsed = began.elapsed().as_nanos().max(1) as f64;
    let used = second.cpu_ns.saturating_sub(first.cpu_ns) as f64;
    Ok(Figures {
        cpu_count: sandbox.limits.cpus,
        cpu_used_percent: (used / elapsed / sandbox.limits.cpus.max(0.01) * 10_000.0).round() / 100.0,
        memory_used: second.memory,
        memory_total: sandbox.limits.memory,
        memory_cache: second.memory_cache,
        disk_used: second.disk,
        disk_total: second.disk_limit.or(sandbox.limits.disk).unwrap_or(0),
    })
}
