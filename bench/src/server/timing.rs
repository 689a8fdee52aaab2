//! CPU time and waits, by turns.

use tollgate_bench::load::{Between, Load, Shape, Taken};
use tollgate_bench::question::Script;
use tollgate_bench::serve::Server;

use crate::contender::Contender;
use crate::process::{self, Program, Programs};

/// What a question cost in a server's best round.
#[derive(Clone, Copy)]
pub struct Cost {
    pub cpu_micros: f64,
    pub per_second: f64,
    pub p50_micros: f64,
    pub p99_micros: f64,
}

/// The servers, each started when it is first asked.
pub struct Fleet<'a> {
    programs: &'a Programs,
    running: Vec<(Program, Server)>,
}

impl<'a> Fleet<'a> {
    pub fn new(programs: &'a Programs) -> Self {
        Self { programs, running: Vec::new() }
    }

    /// The best of `rounds` for each contender, in their order.
    pub fn compare(
        &mut self,
        contenders: &[&Contender],
        shape: Shape,
        questions: usize,
        rounds: usize,
    ) -> Result<Vec<Cost>, String> {
        self.start(contenders)?;
        let scripts: Vec<Script> =
            contenders.iter().map(|contender| Script::new(contender.question)).collect();
        let mut loads = Vec::new();
        for (contender, script) in contenders.iter().zip(&scripts) {
            let address = self.server(contender).address(contender.protocol());
            let load = Load::connect(address, script, shape);
            loads.push(load.map_err(|error| format!("{}: {error}", contender.name))?);
        }
        let mut best: Vec<Option<Cost>> = contenders.iter().map(|_| None).collect();
        for _ in 0..rounds {
            for ((best, load), contender) in best.iter_mut().zip(&mut loads).zip(contenders) {
                let cost = self
                    .round(contender, load, questions)
                    .map_err(|error| format!("{}: {error}", contender.name))?;
                if best.is_none_or(|best| cost.cpu_micros < best.cpu_micros) {
                    *best = Some(cost);
                }
            }
        }
        Ok(best.into_iter().flatten().collect())
    }

    /// The waits of one contender at half the rate it can answer, in the best round.
    pub fn wait(
        &mut self,
        contender: &Contender,
        shape: Shape,
        questions: usize,
        rounds: usize,
    ) -> Result<Cost, String> {
        self.start(&[contender])?;
        let script = Script::new(contender.question);
        let address = self.server(contender).address(contender.protocol());
        let mut load = Load::connect(address, &script, shape)?;
        let mut half = 0.0_f64;
        for _ in 0..rounds {
            half = half.max(questions as f64 / load.saturate(questions)?.seconds / 2.0);
        }
        let mut best: Option<Cost> = None;
        for _ in 0..rounds {
            let before = self.server(contender).cpu_nanos();
            let taken = load.at_rate(half, questions, Between::Sleeps)?;
            let cost = self.cost_since(before, contender, taken, questions);
            if best.is_none_or(|best| cost.p99_micros < best.p99_micros) {
                best = Some(cost);
            }
        }
        Ok(best.expect("there is a round"))
    }

    fn round(
        &self,
        contender: &Contender,
        load: &mut Load<'_>,
        questions: usize,
    ) -> Result<Cost, String> {
        // Those before it left the caches full of their own.
        load.saturate(questions / 10)?;
        let before = self.server(contender).cpu_nanos();
        let taken = load.saturate(questions)?;
        Ok(self.cost_since(before, contender, taken, questions))
    }

    fn cost_since(
        &self,
        before_nanos: f64,
        contender: &Contender,
        mut taken: Taken,
        questions: usize,
    ) -> Cost {
        let nanos = self.server(contender).cpu_nanos() - before_nanos;
        Cost {
            cpu_micros: nanos / 1000.0 / questions as f64,
            per_second: questions as f64 / taken.seconds,
            p50_micros: taken.percentile(50),
            p99_micros: taken.percentile(99),
        }
    }

    fn start(&mut self, contenders: &[&Contender]) -> Result<(), String> {
        for contender in contenders {
            if !self.running.iter().any(|(program, _)| *program == contender.program) {
                let server = process::start(contender.program, self.programs)?;
                self.running.push((contender.program, server));
            }
        }
        Ok(())
    }

    fn server(&self, contender: &Contender) -> &Server {
        let running = self.running.iter().find(|(program, _)| *program == contender.program);
        &running.expect("it was started").1
    }
}
