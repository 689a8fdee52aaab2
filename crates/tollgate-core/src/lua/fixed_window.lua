-- Twin of fixed_window.rs.
-- limit: count, period, 1 if aligned by key. state: used, start.
local fixed_window
if ASKED[4] then
  local function start_of(limit, now)
    if limit[3] == 1 then return now end
    return now - fmod(now, limit[2])
  end

  local function anchored(limit, state, now)
    if state[2] <= now then return state end
    return { state[1], min(state[2], plus(start_of(limit, now), limit[2])) }
  end

  local function current(limit, state, now)
    local used, start = state[1], state[2]
    now = max(now, start)
    if used > 0 and now - start < limit[2] then return used, start end
    return 0, start_of(limit, now)
  end

  local function decision(limit, outcome, used, start, now, retry_after)
    local until_next = 0
    if used ~= 0 then until_next = until_passed(now, limit[2], start) end
    local most = limit[1]
    local remaining = max(most - used, 0)
    return { outcome, most, remaining, until_next, until_next, retry_after, 0, 0, 0, 0 }
  end

  local function charged(limit, state, used, start, now, cost)
    local taken = min(cost, COUNT_MAX - used)
    local answer = decision(limit, ALLOWED, used + taken, start, now, NONE)
    answer[CHARGED], answer[CHARGED_AT] = taken, max(now, start)
    if cost == 0 then return answer, state end
    return answer, { used + taken, start }
  end

  local function decide(limit, state, now, cost)
    local used, start = current(limit, state, now)
    if used + cost <= limit[1] then return charged(limit, state, used, start, now, cost) end
    if cost > limit[1] then
      return decision(limit, TOO_COSTLY, used, start, now, NONE), state
    end
    local retry_after = until_passed(now, limit[2], start)
    return decision(limit, DENIED, used, start, now, retry_after), state
  end

  local function more(self)
    function self.force(limit, state, now, cost)
      local used, start = current(limit, state, now)
      return charged(limit, state, used, start, now, cost)
    end

    function self.punish(limit, state, now, cost)
      local _, after = self.force(limit, state, now, cost)
      return after
    end

    function self.refund(limit, state, now, cost, charged_at)
      local start = state[2]
      local is_charged_here = charged_at >= start and charged_at - start < limit[2]
      state = anchored(limit, state, now)
      if not is_charged_here then return state end
      local left = max(state[1] - cost, 0)
      if left == 0 then return { 0, 0, 0 } end
      return { left, state[2] }
    end

    function self.used(limit, state, now)
      local units, start = current(limit, state, now)
      return units, max(now, start)
    end

    function self.with_used(limit, units, now)
      return { units, start_of(limit, now) }
    end
  end

  fixed_window = {
    header = '1f', first_kept = 2, counters = 2,
    anchored = anchored, decide = decide, more = more,
  }
end
