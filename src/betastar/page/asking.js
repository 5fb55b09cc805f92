// One question at a time: while it is answered, only the newest of the others is kept, and asked next. So a slider that moves fast
// asks no more than can be answered, and each answer is newer than the one before.
export class Latest {
  // work: asks and shows, given (version, …); failed: is told (version, what was wrong); pause: milliseconds between two questions.
  constructor(work, failed, pause = 0) { Object.assign(this, { work, failed, pause, busy: false, next: null }); }

  push(...job) {
    this.next = job;
    if (!this.busy) this.run();
  }

  async run() {
    this.busy = true;
    while (this.next) {
      const job = this.next;
      this.next = null;
      try { await this.work(...job); } catch (problem) { this.failed(job[0], problem.message); }
      if (this.pause) await new Promise((later) => setTimeout(later, this.pause));
    }
    this.busy = false;
  }
}
