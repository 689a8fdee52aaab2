-- Twin of sliding_window.rs.
-- limit: count, period. state: current, previous, number of the window.
local sliding_window
if ASKED[1] then
  -- `a × b ÷ c`, whole and remainder, of an `a` below 2^35 and `b` and `c` below 2^45.
  local function multiply_divide(a, b, c)
    local product = a * b
    if product <= EXACT_MAX then
      local rest = fmod(product, c)
      return (product - rest) / c, rest
    end
    -- Long multiplication, seven bits of `a` at a time from the top. The rest is below 2^45, so
    -- each step stays below 2^45 × 2^7 + 2^7 × 2^45 = 2^53.
    local whole, rest, power = 0, 0, 2 ^ 28
    while power >= 1 do
      local digit = div_floor(a, power)
      local part = rest * 128 + digit * b
      rest = fmod(part, c)
      whole = whole * 128 + (part - rest) / c
      a, power = a - digit * power, power / 128
    end
    return whole, rest
  end

  local function anchored(limit, state, now)
    local period, number = limit[2], state[3]
    if number * period <= now then return state end
    return { state[1], state[2], min(number, div_floor(now, period) + 1) }
  end

  -- The two counts and the number of the window now, how much of it has passed, and how far the
  -- clock is behind it. A window that was written began before the end of time, so that
  -- number × period is exact.
  local function standing(limit, state, now)
    local period, current, previous, number = limit[2], state[1], state[2], state[3]
    local elapsed = now - number * period
    if elapsed < 0 then return current, previous, number, 0, -elapsed end
    if elapsed < period then return current, previous, number, elapsed, 0 end
    if elapsed >= 2 * period then current = 0 end
    number = div_floor(now, period)
    return 0, current, number, now - number * period, 0
  end

  local function estimate(limit, current, previous, elapsed)
    if previous == 0 then return current end
    local whole = multiply_divide(previous, limit[2] - elapsed, limit[2])
    return current + whole
  end

  local function faded_at(period, previous, room)
    if previous <= room then return 0 end
    local whole, part = multiply_divide(room + 1, period, previous)
    if part > 0 then whole = whole + 1 end
    return period + 1 - whole
  end

  local function falls_to(limit, room, current, previous, elapsed, behind)
    local period, wait = limit[2], nil
    if current <= room then
      wait = max(faded_at(period, previous, room - current) - elapsed, 0)
    else
      wait = period - elapsed + faded_at(period, current, room)
    end
    if wait == 0 then return 0 end
    return wait + behind
  end

  local function decision(limit, outcome, units, current, previous, elapsed, behind)
    local most = limit[1]
    local remaining = max(most - units, 0)
    local reset_after, next_after = 0, 0
    if units ~= 0 then
      local room = max(most - (remaining + 1), 0)
      reset_after = falls_to(limit, 0, current, previous, elapsed, behind)
      next_after = falls_to(limit, room, current, previous, elapsed, behind)
    end
    return { outcome, most, remaining, reset_after, next_after, NONE, 0, 0, 0, 0 }
  end

  local function charged(limit, state, now, cost, units)
    local current, previous, number, elapsed, behind = standing(limit, state, now)
    local taken = min(cost, COUNT_MAX - current)
    current = current + taken
    local answer = decision(limit, ALLOWED, units + taken, current, previous, elapsed, behind)
    answer[CHARGED], answer[CHARGED_AT] = taken, number * limit[2] + elapsed
    if cost == 0 then return answer, state end
    return answer, { current, previous, number }
  end

  local function decide(limit, state, now, cost)
    local current, previous, _, elapsed, behind = standing(limit, state, now)
    local units, most = estimate(limit, current, previous, elapsed), limit[1]
    if units + cost <= most then return charged(limit, state, now, cost, units) end
    if cost > most then
      return decision(limit, TOO_COSTLY, units, current, previous, elapsed, behind), state
    end
    local denial = decision(limit, DENIED, units, current, previous, elapsed, behind)
    denial[RETRY_AFTER] = falls_to(limit, most - cost, current, previous, elapsed, behind)
    return denial, state
  end

  local function more(self)
    function self.force(limit, state, now, cost)
      local current, previous, _, elapsed = standing(limit, state, now)
      return charged(limit, state, now, cost, estimate(limit, current, previous, elapsed))
    end

    function self.punish(limit, state, now, cost)
      local _, after = self.force(limit, state, now, cost)
      return after
    end

    function self.refund(limit, state, now, cost, charged_at)
      local windows_ago = state[3] - div_floor(charged_at, limit[2])
      state = anchored(limit, state, now)
      local current, previous = state[1], state[2]
      if windows_ago == 0 then current = max(current - cost, 0) end
      if windows_ago == 1 then previous = max(previous - cost, 0) end
      if current == 0 and previous == 0 then return { 0, 0, 0 } end
      return { current, previous, state[3] }
    end

    function self.used(limit, state, now)
      local period = limit[2]
      local current, previous, number, elapsed = standing(limit, state, now)
      local whole, part = multiply_divide(previous, period - elapsed, period)
      local units = current + whole
      if units > 0 and part > 0 then units = units + 1 end
      return min(units, COUNT_MAX), number * period + elapsed
    end

    function self.with_used(limit, units, now)
      return { units, 0, div_floor(now, limit[2]) }
    end
  end

  sliding_window = {
    header = '1s', first_kept = 2, counters = 3,
    anchored = anchored, decide = decide, more = more,
  }
end
