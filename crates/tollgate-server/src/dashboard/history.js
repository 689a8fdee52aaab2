// The last quarter of an hour, second by second, as `/v1/live` tells it piece by piece.

export class History {
  /// How many seconds are kept.
  kept = 900;
  seconds = [];
  /// The number of the last one, and when it ended.
  last = null;
  endedMs = 0;
  #startedMs = null;

  /// What to ask for: only what is not known yet.
  get path() {
    return this.last === null ? "/v1/live" : `/v1/live?after=${this.last}`;
  }

  /// Takes an answer in; false if it is of another life of the server, so that all must be asked for.
  take(live) {
    const isOther = this.#startedMs !== null && this.#startedMs !== live.started_ms;
    this.#startedMs = live.started_ms;
    if (isOther) {
      this.seconds = [];
      this.last = null;
      return false;
    }
    // Two may have been asked for at a time; what is known is not taken in again.
    const fresh = this.last === null ? live.seconds.length : live.second - this.last;
    if (fresh <= 0) return true;
    this.seconds = this.seconds.concat(live.seconds.slice(-fresh)).slice(-this.kept);
    this.last = live.second;
    this.endedMs = live.now_ms;
    return true;
  }

  /// When a second was, by the server's clock.
  timeOf(second) {
    return this.endedMs - (this.last - second) * 1000;
  }
}
