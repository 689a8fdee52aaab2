-- Twin of fixed_window.rs.
-- limit: count, period, 1 if aligned by key. state: used, start.
local function fixed_window(limit)
  local most, period, is_by_key = limit[1], limit[2], limit[3] == 1

  local function start_of(now)
    if is_by_key then return now end
    return now - fmod(now, period)
  end

  local function anchored(state, now)
    if state[2] <= now then return state end
    return { state[1], min(state[2], plus(start_of(now), period)) }
  end

  local function current(state, now)
    local used, start = state[1], state[2]
    now = max(now, start)
    if used > 0 and now - start < period then return used, start end
    return 0, start_of(now)
  end

  local function decision(outcome, used, start, now, retry_after)
    local until_next = 0
    if used ~= 0 then until_next = until_passed(now, period, start) end
    local remaining = max(most - used, 0)
    return { outcome, most, remaining, until_next, until_next, retry_after, 0, 0, 0, 0 }
  end

  local function charged(state, used, start, now, cost)
    local taken = min(cost, COUNT_MAX - used)
    local answer = decision(ALLOWED, used + taken, start, now, NONE)
    answer[CHARGED], answer[CHARGED_AT] = taken, max(now, start)
    if cost == 0 then return answer, state end
    return answer, { used + taken, start }
  end

  local function decide(state, now, cost)
    state = anchored(state, now)
    local used, start = current(state, now)
    if used + cost <= most then return charged(state, used, start, now, cost) end
    if cost > most then return decision(TOO_COSTLY, used, start, now, NONE), state end
    return decision(DENIED, used, start, now, until_passed(now, period, start)), state
  end

  local function force(state, now, cost)
    state = anchored(state, now)
    local used, start = current(state, now)
    return charged(state, used, start, now, cost)
  end

  local function punish(state, now, cost)
    local _, after = force(state, now, cost)
    return after
  end

  local function refund(state, now, cost, charged_at)
    local start = state[2]
    local is_charged_here = charged_at >= start and charged_at - start < period
    state = anchored(state, now)
    if not is_charged_here then return state end
    local left = max(state[1] - cost, 0)
    if left == 0 then return { 0, 0 } end
    return { left, state[2] }
  end

  local function used(state, now)
    local units, start = current(state, now)
    return units, max(now, start)
  end

  local function with_used(units, now)
    return { units, start_of(now) }
  end

  return {
    letter = 'f', first_kept = 2, counters = 2,
    decide = decide, force = force, punish = punish, refund = refund,
    anchored = anchored, used = used, with_used = with_used,
  }
end
